// What the Node programs share: `program.mjs BASE_URL MODEL FEATURE` exits 0 and prints one JSON line if green.
// A program runs in the folder of its environment, where its packages are: `load(name)` finds them there.

import { createRequire } from 'node:module'
import { setTimeout as pause } from 'node:timers/promises'

export const load = createRequire(`${process.cwd()}/`)
const { z } = load('zod')

export const QUESTION = 'What is the capital of Japan?'
export const MESSAGES = [{ role: 'user', content: QUESTION }]
export const MAX_TOKENS = 24
export const STOP = 'Tokyo'
export const TOO_LONG = 'word '.repeat(9000)
export const FORCED_TOKENS = 200
export const ENDLESS_TOKENS = 2000
export const NUM_READ = 3
export const OTHER_MODEL = 'no-such-model'
export const TOOL_RESULT = 'It sails at noon.'
const ABORT_MS = 10_000

export const Weather = z.strictObject({ city: z.enum(['Paris', 'Oslo']), days: z.int().min(1).max(7) })
export const Ferry = z.strictObject({ origin: z.enum(['Dover', 'Calais']), cars: z.boolean(), note: z.string().max(16) })
export const SCHEMAS = { Weather, Ferry }
export const PURPOSES = { Weather: 'Look up the weather of a city.', Ferry: 'Find a ferry.' }

export function hold(condition, what) {
  if (!condition) throw new Error(what)
}

// A tool call, whose arguments must be those of its model.
export function theTool(name, given) {
  const fields = typeof given === 'string' ? JSON.parse(given) : given
  return { tool: name, arguments: SCHEMAS[name].parse(fields) }
}

// What the client makes of a refusal: an error of this class, with the server's status and code.
export async function refusal(call, kind, statusAndCode) {
  try {
    await call()
  } catch (error) {
    if (!kind(error)) throw error
    const [status, code] = statusAndCode(error)
    return { error: error.constructor.name, status, code }
  }
  throw new Error('not refused')
}

async function counts(server) {
  const lines = (await (await fetch(`${server.base}/metrics`)).text()).split('\n').filter((line) => !line.startsWith('#'))
  const value = (line) => Number(line.split(' ').at(-1))
  const gone = lines.filter((line) => line.startsWith('kvferry_gateway_requests_total{') && line.includes('"499"'))
  const running = lines.find((line) => line.startsWith('kvferry_gateway_requests_running '))
  return { aborted: gone.reduce((sum, line) => sum + value(line), 0), running: value(running) - 1 } // but for this one
}

// Around a stream that its client leaves: while the client lives on, the server ends the request.
export async function aborted(server, leave) {
  const before = await counts(server)
  const found = await leave()
  for (const deadline = Date.now() + ABORT_MS; Date.now() < deadline; await pause(50)) {
    const now = await counts(server)
    if (now.aborted === before.aborted + 1 && now.running === 0) return found
  }
  throw new Error(`still running ${ABORT_MS} ms after the client stopped reading`)
}

// Run the feature that the command line names.
export async function main(features) {
  const [base, model, feature] = process.argv.slice(2)
  const found = await features[feature]({ base, v1: `${base}/v1`, model })
  process.stdout.write(`${JSON.stringify(found)}\n`)
}
