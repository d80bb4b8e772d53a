/* Requests with the largest and most unusual stored objects: files, batches and conversations (see {@link HostileInput}). */
import { type HostileInput, post, send } from './hostile-inputs.ts'
import { TEST_KEY } from './stack.ts'

const MIB = 1024 * 1024
const LARGE = 28 * MIB

const message = (content: unknown) => ({ role: 'user', content })
const parts = (count: number) => Array.from({ length: count }, () => ({ type: 'input_text', text: '' }))
const requests = (content: string) =>
  JSON.stringify({ requests: [{ custom_id: 'a', params: { model: 'echo-1', messages: [message(content)] } }] })

export const HOSTILE_STORED: readonly HostileInput[] = [
  file('a line of blanks', () => Buffer.concat([Buffer.alloc(LARGE, ' '), Buffer.from('\n{}')])),
  file('2 million line feeds', () => Buffer.alloc(2 * MIB, '\n')),
  file('a million lines of a blank', () => Buffer.from(' \n'.repeat(MIB))),
  post('a request of 28 MB', '/v1/messages/batches', () => requests('x'.repeat(LARGE)), {
    send: (url, made) => send(url, 'POST /v1/messages/batches', made, { 'anthropic-version': '2023-06-01' }),
  }),
  post('items of control characters', '/v1/conversations', () => ({
    items: Array.from({ length: 20 }, () => message('\u0001'.repeat(LARGE / 6 / 20))),
  })),
  post('an item of 130,000 parts', '/v1/conversations', () => ({ items: [message(parts(130_000))] })),
  post('2 MB of words, streamed', '/v1/responses', () => ({
    ...{ model: 'echo-1', stream: true, input: 'hello world '.repeat((2 * MIB) / 12) },
  })),
  inConversation('95,000 items', () => Array.from({ length: 95_000 }, () => message(''))),
  inConversation('28 MB of words', () => 'hello world '.repeat(LARGE / 12)),
]

function file(name: string, make: () => Buffer): HostileInput {
  const head = (field: string) => `--x\r\ncontent-disposition: form-data; name="${field}"`
  return {
    name: `POST /v1/files with ${name}`,
    make: () =>
      Buffer.concat([
        Buffer.from(`${head('purpose')}\r\n\r\nbatch\r\n${head('file')}; filename="a"\r\n\r\n`),
        make(),
        Buffer.from('\r\n--x--\r\n'),
      ]),
    send: (url, made) => send(url, 'POST /v1/files', made, { 'content-type': 'multipart/form-data; boundary=x' }),
  }
}

/** Creates an empty conversation, then sends a request of the Responses API that adds `makeInput()` to this conversation. */
function inConversation(name: string, makeInput: () => unknown): HostileInput {
  const path = '/v1/responses'
  return post(`${name} in a conversation`, path, () => ({ model: 'echo-1', conversation: 'ID', input: makeInput() }), {
    send: async (url, made) => {
      const headers = { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' }
      const created = await fetch(`${url}/v1/conversations`, { method: 'POST', headers, body: '{}' })
      const { id } = (await created.json()) as { id: string }
      const [before, behind] = [made.indexOf('"ID"') + 1, made.indexOf('"ID"') + 3]
      const body = Buffer.concat([made.subarray(0, before), Buffer.from(id), made.subarray(behind)])
      return await send(url, `POST ${path}`, body)
    },
  })
}
