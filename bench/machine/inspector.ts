import { freePort } from '../../test/support/processes/free-ports.ts'

const REPLY_TIMEOUT_MS = 30_000

/** Chooses a port for the inspector (debugger protocol) of one process. The process must be started with the returned flag. */
export async function chooseInspector(): Promise<{ readonly flag: string; open(): Promise<Inspector> }> {
  const port = await freePort()
  return { flag: `--inspect=127.0.0.1:${port}`, open: () => Inspector.open(port) }
}

export class Inspector implements Disposable {
  readonly #socket: WebSocket
  readonly #replies = new Map<number, (result: unknown) => void>()
  #calls = 0

  private constructor(socket: WebSocket) {
    this.#socket = socket
    socket.addEventListener('message', ({ data }) => {
      const { id, result } = JSON.parse(String(data)) as { id?: number; result?: unknown }
      if (id === undefined) return
      this.#replies.get(id)?.(result)
      this.#replies.delete(id)
    })
  }

  static async open(port: number): Promise<Inspector> {
    const signal = AbortSignal.timeout(REPLY_TIMEOUT_MS)
    const response = await fetch(`http://127.0.0.1:${port}/json/list`, { signal })
    const [target] = (await response.json()) as { webSocketDebuggerUrl: string }[]
    if (!target) throw new Error('the process has no inspector')
    const socket = new WebSocket(target.webSocketDebuggerUrl)
    await new Promise((resolve, reject) => {
      socket.addEventListener('open', resolve)
      socket.addEventListener('error', () => reject(new Error('the inspector refused the connection')))
    })
    return new Inspector(socket)
  }

  /** Calls a method of the protocol. @throws Error if no reply arrives within 30 s */
  async call(method: string, params: object = {}): Promise<unknown> {
    const id = ++this.#calls
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    const timer = setTimeout(() => reject(new Error(`no reply to ${method}`)), REPLY_TIMEOUT_MS)
    this.#replies.set(id, resolve)
    this.#socket.send(JSON.stringify({ id, method, params }))
    return await promise.finally(() => clearTimeout(timer))
  }

  [Symbol.dispose](): void {
    this.#socket.close()
  }
}
