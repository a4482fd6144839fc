// Vercel's AI SDK with its provider for servers like OpenAI's; it checks every chunk against a schema of its own.

import * as contract from '../shared/contract.mjs'

const { APICallError, generateText, Output, streamText, tool } = contract.load('ai')
const { createOpenAICompatible } = contract.load('@ai-sdk/openai-compatible')
const { Ferry, hold } = contract

const TOOLS = Object.fromEntries(
  Object.entries(contract.SCHEMAS).map(([name, inputSchema]) => [
    name, tool({ description: contract.PURPOSES[name], inputSchema }),
  ]),
)

function asked(server, more = {}, model = server.model) {
  const settings = { name: 'kvferry', baseURL: server.v1, includeUsage: true, supportsStructuredOutputs: true }
  const plain = { prompt: contract.QUESTION, temperature: 0, maxOutputTokens: contract.MAX_TOKENS, maxRetries: 0 }
  return { model: createOpenAICompatible(settings)(model), ...plain, ...more }
}

// Fields that the SDK has no name for go by the provider's name.
const extra = (fields) => ({ providerOptions: { kvferry: fields } })
const forced = (server, toolChoice, more = {}) =>
  asked(server, { tools: TOOLS, toolChoice, maxOutputTokens: contract.FORCED_TOKENS, ...more })
const said = (error) => [error.statusCode, error.data.error.code]
const failed = (error) => APICallError.isInstance(error)

async function plain(server, more = {}) {
  const { text, finishReason } = await generateText(asked(server, more))
  return { text, finish: finishReason }
}

async function stream(server) {
  const pieces = []
  for await (const piece of streamText(asked(server)).textStream) pieces.push(piece)
  hold(pieces.length > contract.NUM_READ, 'not streamed')
  return { text: pieces.join('') }
}

async function usage(server) {
  const answer = streamText(asked(server))
  await answer.consumeStream()
  const { inputTokens, outputTokens } = await answer.usage
  return { prompt_tokens: inputTokens, completion_tokens: outputTokens }
}

// Whole, and streamed.
async function two_tools(server) {
  const ask = forced(server, 'required', extra({ parallel_tool_calls: false }))
  const whole = await generateText(ask)
  hold(whole.finishReason === 'tool-calls', whole.finishReason)
  const [streamed] = await streamText(ask).toolCalls
  hold(JSON.stringify(streamed.input) === JSON.stringify(whole.toolCalls[0].input), 'streamed otherwise')
  return contract.theTool(streamed.toolName, streamed.input)
}

// Then its result is sent back, and answered with text.
async function forced_tool(server) {
  const answer = await generateText(forced(server, { type: 'tool', toolName: 'Ferry' }))
  const [call] = answer.toolCalls
  hold(call.toolName === 'Ferry', call.toolName)
  const output = { type: 'text', value: contract.TOOL_RESULT }
  const result = { type: 'tool-result', toolCallId: call.toolCallId, toolName: 'Ferry', output }
  const messages = [...contract.MESSAGES, ...answer.response.messages, { role: 'tool', content: [result] }]
  const after = await generateText(asked(server, { prompt: undefined, messages, tools: TOOLS, toolChoice: 'none' }))
  hold(after.text, "no text after the tool's result")
  return contract.theTool(call.toolName, call.input)
}

async function schema(server) {
  const output = Output.object({ schema: Ferry, name: 'Ferry' })
  return { parsed: Ferry.parse((await generateText(asked(server, { output, maxOutputTokens: contract.FORCED_TOKENS }))).output) }
}

async function abort(server) {
  const controller = new AbortController()
  const more = { maxOutputTokens: contract.ENDLESS_TOKENS, abortSignal: controller.signal, ...extra({ ignore_eos: true }) }
  return contract.aborted(server, async () => {
    let num_read = 0
    for await (const _ of streamText(asked(server, more)).textStream) if (++num_read === contract.NUM_READ) break
    controller.abort()
    return { num_read }
  })
}

await contract.main({
  plain,
  stream,
  usage,
  two_tools,
  forced_tool,
  schema,
  stop: (server) => plain(server, { stopSequences: [contract.STOP] }),
  wrong_model: (server) => contract.refusal(() => generateText(asked(server, {}, contract.OTHER_MODEL)), failed, said),
  too_long: (server) => contract.refusal(() => generateText(asked(server, { prompt: contract.TOO_LONG })), failed, said),
  abort,
})
