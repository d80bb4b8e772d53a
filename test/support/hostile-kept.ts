import { type HostileInput, post, send } from './hostile-inputs.ts'

/** The largest and oddest that is kept for callers: files and batches (see {@link HostileInput}). */

const MIB = 1024 * 1024
const LARGE = 28 * MIB

const message = (content: unknown) => ({ role: 'user', content })
const requests = (content: string) =>
  JSON.stringify({ requests: [{ custom_id: 'a', params: { model: 'echo-1', messages: [message(content)] } }] })

/** Every row. */
export const HOSTILE_KEPT: readonly HostileInput[] = [
  file('a line of blanks', () => Buffer.concat([Buffer.alloc(LARGE, ' '), Buffer.from('\n{}')])),
  file('2 million line feeds', () => Buffer.alloc(2 * MIB, '\n')),
  file('a million lines of a blank', () => Buffer.from(' \n'.repeat(MIB))),
  post('a request of 28 MB', '/v1/messages/batches', () => requests('x'.repeat(LARGE)), {
    send: (url, made) => send(url, 'POST /v1/messages/batches', made, { 'anthropic-version': '2023-06-01' }),
  }),
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
