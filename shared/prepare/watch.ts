import { opendir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** How often the bytes are counted, at most. */
const WATCH_MS = 250
/** Counting takes at most this part of the time: pip unpacks tens of thousands of files. */
const BUSY_SHARE = 1 / 4

/** What counts. End it. */
export interface Watch {
  end(): Promise<void>
}

/**
 * Counts the bytes of a directory again and again, and tells them: pip tells programs no progress before version 24.
 *
 * Looks at one file after the other, and never counts twice at once, so that a process that also answers calls is never
 * held up by it.
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

/** Files come and go while pip works: what is gone counts nothing. */
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
