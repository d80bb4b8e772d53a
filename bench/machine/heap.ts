/** What a process of Node holds once its garbage is collected, asked over its inspector (the Chrome DevTools Protocol). */
import { createServer } from 'node:net'
import { residentMib } from './usage.ts'

const ANSWER_MS = 30_000
const MIB = 1024 * 1024

/** Memory of a process after a full collection, in MiB. */
export interface Collected {
  /** Objects that are alive, and the buffers that belong to them. */
  readonly heapMib: number
  readonly residentMib: number
}

/** A process that can be asked; start it with {@link Inspected.nodeFlags}. */
export class Inspected {
  readonly nodeFlags: readonly string[]
  readonly #port: number

  private constructor(port: number) {
    this.#port = port
    this.nodeFlags = [`--inspect=127.0.0.1:${port}`]
  }

  /** Chooses a port for one process that is started next. */
  static async choose(): Promise<Inspected> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const address = server.address()
    await new Promise((resolve) => server.close(resolve))
    if (address === null || typeof address === 'string') throw new Error('no port is free')
    return new Inspected(address.port)
  }

  /** Has the process collect its garbage, and says what is left. @throws Error when it does not answer */
  async collect(pid: number): Promise<Collected> {
    const answer = await fetch(`http://127.0.0.1:${this.#port}/json/list`, { signal: AbortSignal.timeout(ANSWER_MS) })
    const [target] = (await answer.json()) as { webSocketDebuggerUrl: string }[]
    if (!target) throw new Error('the process has no inspector')
    const usage = await askAll(target.webSocketDebuggerUrl, ['HeapProfiler.collectGarbage', 'Runtime.getHeapUsage'])
    const { usedSize = 0, backingStorageSize = 0 } = usage as { usedSize?: number; backingStorageSize?: number }
    return { heapMib: (usedSize + backingStorageSize) / MIB, residentMib: residentMib(pid) }
  }
}

/** Calls methods one after the other. @returns What the last one gave */
async function askAll(url: string, methods: readonly string[]): Promise<unknown> {
  const socket = new WebSocket(url)
  try {
    return await new Promise((resolve, reject) => {
      let asked = 0
      const ask = () => socket.send(JSON.stringify({ id: asked, method: methods[asked] }))
      setTimeout(() => reject(new Error('the inspector does not answer')), ANSWER_MS).unref()
      socket.addEventListener('error', () => reject(new Error('the inspector cannot be reached')))
      socket.addEventListener('open', ask)
      socket.addEventListener('message', ({ data }) => {
        const { id, result } = JSON.parse(String(data)) as { id?: number; result?: unknown }
        if (id !== asked) return
        asked++
        if (asked < methods.length) ask()
        else resolve(result)
      })
    })
  } finally {
    socket.close()
  }
}
