import { createHash } from 'node:crypto'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import {
  getPreparationState,
  type OnProgress,
  type PreparationState,
  type Prepared,
  type PrepareOptions,
  prepareOnce,
} from './prepare.ts'

/*
 * A directory that is built once per machine: built in a work directory next to its final path, then renamed. The name contains a hash of its
 * contents, so another version gets another directory.
 */

/** File that is written last into a complete directory, with facts for its users as JSON. */
const READY = 'ready.json'

export interface PreparedPlace {
  readonly tag: string
  readonly directory: string
  readonly workDir: string
}

/** Fills `built` and returns facts for the users of the directory (JSON). `built` may hold complete steps of an interrupted build. */
export type BuildDirectory<Facts> = (built: string, workDir: string, onProgress: OnProgress) => Promise<Facts>

/** Paths below `parent` for a directory with these contents. */
export function placeFor(parent: string, name: string, contents: readonly (string | Uint8Array)[]): PreparedPlace {
  const hash = createHash('sha256')
  for (const content of contents) hash.update(content)
  const tag = hash.digest('hex').slice(0, 12)
  const full = `${name}-${tag}`
  return { tag, directory: join(parent, full), workDir: join(parent, `.${full}`) }
}

/** Preparation state of a directory, with the facts of its builder if ready. */
export async function getDirectoryState<Facts>(place: PreparedPlace): Promise<PreparationState<Facts>> {
  return await getPreparationState(prepared<Facts>(place))
}

/** Ensures that a directory exists, and returns its facts. @throws Errors of {@link prepareOnce} and of `build` */
export async function prepareDirectory<Facts>(
  place: PreparedPlace,
  build: BuildDirectory<Facts>,
  options: PrepareOptions = {},
): Promise<Facts> {
  const { directory, workDir } = place
  const make = async (onProgress: OnProgress) => {
    const built = join(workDir, 'built')
    const facts = await build(built, workDir, onProgress)
    await writeFile(join(built, READY), JSON.stringify(facts))
    await rename(built, directory)
  }
  return await prepareOnce(prepared<Facts>(place), make, options)
}

/** Deletes a directory. Another process may do so at the same time. */
export async function discardDirectory(directory: string): Promise<void> {
  const grave = `${directory}.${process.pid}.old`
  await rename(directory, grave).catch(() => {})
  await rm(grave, { recursive: true, force: true })
}

function prepared<Facts>({ directory, workDir }: PreparedPlace): Prepared<Facts> {
  const find = async () => {
    const text = await readFile(join(directory, READY), 'utf8').catch(() => undefined)
    return text === undefined ? undefined : (JSON.parse(text) as Facts)
  }
  return { workDir, find }
}
