/** Starts the real local model server for tests. The environment is prepared once per machine; each test file starts a server of its own. */
import { homedir } from 'node:os'
import { join } from 'node:path'
import { FormData, request } from 'undici'
import { type Environment, prepareEnvironment } from '#shared/local-server/environment.ts'
import { LocalServer, type LocalServerOptions } from '#shared/local-server/local-server.ts'
import { openLog } from '#shared/log/log.ts'

/** Directory in which test runs keep models and Python packages of the server. */
export const MODELS_DIR = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')

/**
 * Prepares the environment of the server. If Python or a package index is missing, then the reason is printed and the result is undefined.
 *
 * With CI=true the reason is thrown as an error, because a skip would hide a failure.
 */
export async function findEnvironment(): Promise<Environment | undefined> {
  try {
    return await prepareEnvironment(MODELS_DIR)
  } catch (error) {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`Tests on the local model server are skipped: ${(error as Error).message}\n`)
    return undefined
  }
}

/** A complete response. */
export interface Answer {
  readonly status: number
  readonly headers: Record<string, string | string[] | undefined>
  readonly bytes: Buffer
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers they expect
  readonly json: any
}

/** A model server that only one test uses, with functions that send requests to it. */
export interface TestServer extends AsyncDisposable {
  readonly server: LocalServer
  post(path: string, body: Buffer | FormData | object): Promise<Answer>
  /** Sends a request for a stream, and yields its events as they arrive. */
  events(path: string, form: FormData, signal?: AbortSignal): AsyncGenerator<StreamEvent>
}

/** One event of a streamed transcription. */
// biome-ignore lint/suspicious/noExplicitAny: tests look into answers they expect
export type StreamEvent = Record<string, any>

/** Timeout of a call in ms. On a busy machine, the model may need minutes for one window of audio, because it retries at several temperatures. */
const CALL_MS = 600_000

/** Opens a server with the prepared environment. The server process starts with the first call. */
export function openServer(options: Partial<LocalServerOptions> = {}): TestServer {
  const server = new LocalServer({ directory: MODELS_DIR, log: openLog('silent', 'test'), ...options })
  const send = async (path: string, body: Buffer | FormData | object, signal: AbortSignal) => {
    const { origin, dispatcher } = await server.connect(signal)
    const isPlain = !Buffer.isBuffer(body) && !(body instanceof FormData)
    return await request(new URL(path, origin), {
      dispatcher,
      method: 'POST',
      signal,
      headers: isPlain ? { 'content-type': 'application/json' } : {},
      body: isPlain ? JSON.stringify(body) : body,
    })
  }
  return {
    server,
    post: async (path, body) => {
      const answer = await send(path, body, AbortSignal.timeout(CALL_MS))
      const bytes = Buffer.from(await answer.body.arrayBuffer())
      const isJson = String(answer.headers['content-type']).startsWith('application/json')
      const json = isJson ? JSON.parse(bytes.toString()) : undefined
      return { status: answer.statusCode, headers: answer.headers, bytes, json }
    },
    events: async function* (path, form, signal = AbortSignal.timeout(CALL_MS)) {
      const { body } = await send(path, form, signal)
      let text = ''
      for await (const chunk of body) {
        text += chunk
        for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
          yield JSON.parse(text.slice('data: '.length, end)) as StreamEvent
          text = text.slice(end + 2)
        }
      }
    },
    [Symbol.asyncDispose]: () => server.close(),
  }
}

/** A multipart form; a list becomes a field per value. */
export function form(fields: Record<string, string | string[] | Buffer>): FormData {
  const data = new FormData()
  for (const [name, value] of Object.entries(fields)) {
    if (Buffer.isBuffer(value)) data.append(name, new Blob([new Uint8Array(value)]), 'audio')
    else for (const each of [value].flat()) data.append(name, each)
  }
  return data
}
