import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { rename, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { SearchBackend } from '#shared/search/search.ts'
import { openFolder } from '../../../test/support/research/run.ts'

export interface Question {
  readonly id: string
  readonly question: string
  readonly language: string
  readonly gold: readonly string[]
  /** Each group is a list of alternative wordings of one fact. A report states the fact if it contains one wording. */
  readonly facts: readonly (readonly string[])[]
  readonly table: boolean
  readonly answerable: boolean
  readonly split: 'dev' | 'test'
}

const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice')
const FETCH_MS = 1_200_000

/** Directories in the cache. If the list of packages changes, increment the number in their names, so that old directories are not used. */
const CORPORA = {
  quality: { script: 'corpus.sh', directory: 'quality-corpus-1', index: 'quality-index-1' },
  fresh: { script: 'fresh.sh', directory: 'quality-fresh-1', index: 'quality-fresh-index-1' },
} as const

/** File with the questions of each set, and the corpus that contains the answers. */
const SETS: Readonly<Record<string, readonly [file: string, corpus: keyof typeof CORPORA]>> = {
  quality: ['questions.json', 'quality'],
  fresh: ['fresh.json', 'fresh'],
  abstain: ['abstain.json', 'fresh'],
  outside: ['outside.json', 'fresh'],
  silence: ['silence.json', 'quality'],
  'long-quality': ['long-quality.json', 'quality'],
  'long-fresh': ['long-fresh.json', 'fresh'],
}

/** Reads the questions of a set, and opens its documents. The documents are downloaded if the cache lacks them. */
export async function openSet(name: string): Promise<{ questions: Question[]; corpus: SearchBackend }> {
  const set = SETS[name]
  if (!set) throw new Error(`--set must be one of ${Object.keys(SETS).join(', ')}; got ${name}`)
  const { script, directory, index } = CORPORA[set[1]]
  const path = join(CACHE, directory)
  if (!(await stat(path).catch(() => undefined))) {
    console.log('fetching the corpus')
    const run = promisify(execFile)
    await run('bash', [join(import.meta.dirname, script), `${path}.part`], {
      timeout: FETCH_MS,
      maxBuffer: 16 * 1024 * 1024,
    })
    await rename(`${path}.part`, path)
  }
  const questions: Question[] = JSON.parse(readFileSync(join(import.meta.dirname, set[0]), 'utf8'))
  return { questions, corpus: await openFolder(path, join(CACHE, index)) }
}
