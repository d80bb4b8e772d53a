/*
 * Reads Python programs with their expected results from the folder `corpus/`. If the folder REFERENCE outside of the repository exists, then its
 * larger collection is read, too.
 */
import { readdirSync, readFileSync } from 'node:fs'

const OURS = new URL('./corpus/', import.meta.url)
const REFERENCE = new URL('../../../../shared/reference/sandbox/', import.meta.url)

/** Expected result, in the fields of the result body (docs/guides/code.md, The result). An absent field is not checked. */
export interface Expectation {
  readonly success?: boolean | readonly boolean[]
  readonly exit_code?: number | readonly number[]
  readonly violations?: 'some' | 'none'
  readonly stdout_contains?: string
  readonly stderr_contains?: string
  readonly stdout_lacks?: readonly string[]
  readonly stderr_lacks?: readonly string[]
  readonly plots?: number
  readonly plots_max?: number
}

/** A test program. An attack prints ESCAPED if it succeeds. */
export interface Snippet {
  readonly id: string
  readonly code: string
  readonly timeout_ms: number
  /** Expected result if the code scan is on. */
  readonly expect: Expectation
  /** Expected result if the code scan is off, so that only the isolation of the sandbox protects the service. Set for attacks only. */
  readonly unscanned?: Expectation
  readonly category?: string
}

export type Corpus = 'attacks' | 'legit' | 'figures'

/** Returns all programs of one corpus. If both folders have a program with the same id, then that of this repository is used. */
export function snippets(corpus: Corpus): Snippet[] {
  const byId = new Map<string, Snippet>()
  for (const folder of [OURS, REFERENCE]) {
    for (const snippet of read(folder, `${corpus}.json`)) {
      if (!byId.has(snippet.id)) byId.set(snippet.id, snippet)
    }
  }
  return [...byId.values()]
}

function read(folder: URL, name: string): Snippet[] {
  if (folder === REFERENCE && !isThere(folder, name)) return []
  return JSON.parse(readFileSync(new URL(name, folder), 'utf8'))
}

function isThere(folder: URL, name: string): boolean {
  try {
    return readdirSync(folder).includes(name)
  } catch {
    return false
  }
}
