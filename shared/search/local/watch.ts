import { type FSWatcher, watch } from 'node:fs'
import { join } from 'node:path'
import type { Corpus } from './files.ts'

/** Time in ms for which change events are collected before one scan starts. An editor causes several events when it saves a file. */
const DEBOUNCE_MS = 200
/**
 * Interval in ms of full scans. Scans find changes on network drives and in corpora with too many folders, for which the system sends no change
 * events.
 */
const POLL_INTERVAL_MS = 30_000

export function watchCorpus(
  { directory, paths }: Corpus,
  pollIntervalMs = POLL_INTERVAL_MS,
  onChange: () => void,
): () => void {
  const watchers: FSWatcher[] = []
  let gathering: NodeJS.Timeout | undefined
  const gather = () => {
    gathering ??= setTimeout(() => {
      gathering = undefined
      onChange()
    }, DEBOUNCE_MS).unref()
  }
  for (const path of paths) {
    const watcher = open(join(directory, path), gather)
    if (watcher) watchers.push(watcher)
  }
  const timer = setInterval(onChange, pollIntervalMs).unref()
  return () => {
    clearInterval(timer)
    clearTimeout(gathering)
    for (const watcher of watchers) watcher.close()
  }
}

function open(path: string, onChange: () => void): FSWatcher | undefined {
  try {
    const watcher = watch(path, { recursive: true, persistent: false }, onChange)
    // If the watcher fails, then it is closed. The periodic scans still find changes.
    watcher.on('error', () => watcher.close())
    return watcher
  } catch {
    return undefined
  }
}
