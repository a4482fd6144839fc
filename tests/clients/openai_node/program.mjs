// The official Node client.

import * as contract from '../shared/contract.mjs'

const OpenAI = contract.load('openai').OpenAI
const { zodFunction, zodResponseFormat } = contract.load('openai/helpers/zod')
const { Ferry, Weather, hold } = contract

const TOOLS = Object.entries(contract.SCHEMAS).map(([name, parameters]) =>
  zodFunction({ name, parameters, description: contract.PURPOSES[name] }),
)

const completions = (server) => new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 }).chat.completions
const asked = (server, more = {}) => ({
  model: server.model, messages: contract.MESSAGES, temperature: 0, max_tokens: contract.MAX_TOKENS, ...more,
})
const textOf = ({ choices: [choice] }) => ({ text: choice.message.content, finish: choice.finish_reason })
const said = (error) => [error.status, error.code]

async function stream(server) {
  const chunks = []
  for await (const chunk of await completions(server).create(asked(server, { stream: true }))) chunks.push(chunk)
  hold(chunks.length > contract.NUM_READ, 'not streamed')
  return { text: chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join('') }
}

// By the client's own accumulator, which is strict about the order of chunks.
async function usage(server) {
  const ask = asked(server, { stream_options: { include_usage: true } })
  const { prompt_tokens, completion_tokens } = (await completions(server).stream(ask).finalChatCompletion()).usage
  return { prompt_tokens, completion_tokens }
}

// Whole, and streamed through the client's own accumulator.
async function two_tools(server) {
  const choices = { tools: TOOLS, tool_choice: 'required', parallel_tool_calls: false }
  const ask = asked(server, { ...choices, max_tokens: contract.FORCED_TOKENS })
  const whole = (await completions(server).parse(ask)).choices[0]
  hold(whole.finish_reason === 'tool_calls', whole.finish_reason)
  hold(whole.message.tool_calls[0].function.parsed_arguments, 'typed arguments')
  const streamed = (await completions(server).stream(ask).finalChatCompletion()).choices[0].message.tool_calls[0].function
  hold(streamed.arguments === whole.message.tool_calls[0].function.arguments, `streamed otherwise: ${streamed.arguments}`)
  return contract.theTool(streamed.name, streamed.arguments)
}

// Then its result is sent back, and answered with text.
async function forced_tool(server) {
  const choice = { type: 'function', function: { name: 'Ferry' } }
  const ask = asked(server, { tools: TOOLS, tool_choice: choice, max_tokens: contract.FORCED_TOKENS })
  const { message } = (await completions(server).create(ask)).choices[0]
  const call = message.tool_calls[0]
  hold(call.function.name === 'Ferry', call.function.name)
  const messages = [...contract.MESSAGES, message, { role: 'tool', tool_call_id: call.id, content: contract.TOOL_RESULT }]
  const after = await completions(server).create(asked(server, { tools: TOOLS, tool_choice: 'none', messages }))
  hold(after.choices[0].message.content, "no text after the tool's result")
  return contract.theTool(call.function.name, call.function.arguments)
}

async function schema(server) {
  const format = zodResponseFormat(Ferry, 'Ferry')
  const answer = await completions(server).parse(asked(server, { response_format: format, max_tokens: contract.FORCED_TOKENS }))
  return { parsed: Ferry.parse(answer.choices[0].message.parsed) }
}

async function n(server) {
  const answer = await completions(server).create(asked(server, { n: 2, temperature: 1, seed: 1 }))
  return { indices: answer.choices.map((choice) => choice.index) }
}

async function logprobs(server) {
  const answer = await completions(server).create(asked(server, { logprobs: true, top_logprobs: 2 }))
  const { content } = answer.choices[0].logprobs
  hold(content.length && content.every((each) => each.logprob <= 0 && each.top_logprobs.length === 2), 'log probabilities')
  return { num_tokens: content.length }
}

async function abort(server) {
  const ask = asked(server, { stream: true, ignore_eos: true, max_tokens: contract.ENDLESS_TOKENS })
  return contract.aborted(server, async () => {
    let num_read = 0
    for await (const _ of await completions(server).create(ask)) if (++num_read === contract.NUM_READ) break
    return { num_read }
  })
}

await contract.main({
  plain: async (server) => textOf(await completions(server).create(asked(server))),
  stream,
  usage,
  two_tools,
  forced_tool,
  schema,
  n,
  stop: async (server) => textOf(await completions(server).create(asked(server, { stop: [contract.STOP] }))),
  logprobs,
  wrong_model: (server) => contract.refusal(
    () => completions(server).create(asked(server, { model: contract.OTHER_MODEL })),
    (error) => error instanceof OpenAI.NotFoundError, said,
  ),
  too_long: (server) => contract.refusal(
    () => completions(server).create(asked(server, { messages: [{ role: 'user', content: contract.TOO_LONG }] })),
    (error) => error instanceof OpenAI.BadRequestError, said,
  ),
  abort,
})
