import { type FSWatcher, watch } from 'node:fs'
import { join } from 'node:path'
import type { Corpus } from './files.ts'

/** How long changes gather before they are looked at: an editor writes a file several times. */
const GATHER_MS = 200
/** Between two looks at everything, where the system tells of no changes: network drives, or too many folders. */
const LOOK_MS = 30_000

/** Says when a corpus may have changed, soon after the system tells of it and from time to time. @returns what ends it */
export function watchCorpus({ directory, paths }: Corpus, lookMs = LOOK_MS, onChange: () => void): () => void {
  const watchers: FSWatcher[] = []
  let gathering: NodeJS.Timeout | undefined
  const gather = () => {
    gathering ??= setTimeout(() => {
      gathering = undefined
      onChange()
    }, GATHER_MS).unref()
  }
  for (const path of paths) {
    const watcher = open(join(directory, path), gather)
    if (watcher) watchers.push(watcher)
  }
  const timer = setInterval(onChange, lookMs).unref()
  return () => {
    clearInterval(timer)
    clearTimeout(gathering)
    for (const watcher of watchers) watcher.close()
  }
}

function open(path: string, onChange: () => void): FSWatcher | undefined {
  try {
    const watcher = watch(path, { recursive: true, persistent: false }, onChange)
    // The timer goes on without it.
    watcher.on('error', () => watcher.close())
    return watcher
  } catch {
    return undefined
  }
}
