import { opendir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const WATCH_MS = 250
/** Maximum share of time spent on counting: pip unpacks tens of thousands of files. */
const BUSY_SHARE = 1 / 4

export interface Watch {
  end(): Promise<void>
}

/**
 * Measures the progress of pip by counting the bytes in a directory: before version 24, pip reports none to programs.
 *
 * Files are read one at a time and counts never overlap, so that a process that also serves calls is not delayed.
 */
export function watchBytes(directory: string, onBytes: (bytes: number) => void): Watch {
  const end = new AbortController()
  const done = count(directory, onBytes, end.signal)
  return {
    async end() {
      end.abort()
      await done
    },
  }
}

async function count(directory: string, onBytes: (bytes: number) => void, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const startedMs = performance.now()
    onBytes(await bytesIn(directory, signal))
    const tookMs = performance.now() - startedMs
    await sleep(Math.max(WATCH_MS, tookMs / BUSY_SHARE - tookMs), undefined, { signal }).catch(() => {})
  }
}

/** Files appear and disappear while pip works; a missing file counts 0. */
async function bytesIn(directory: string, signal: AbortSignal): Promise<number> {
  let sum = 0
  const entries = await opendir(directory).catch(() => undefined)
  if (!entries) return sum
  for await (const entry of entries) {
    if (signal.aborted) break
    const path = join(directory, entry.name)
    if (entry.isDirectory()) sum += await bytesIn(path, signal)
    else if (entry.isFile()) sum += await stat(path).then(({ size }) => size, none)
  }
  return sum
}

function none(): number {
  return 0
}
