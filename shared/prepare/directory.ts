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
 * A directory that is made once for this machine: built beside its place and moved there whole. Its name says what is
 * in it, so another version of that is another directory.
 */

/** Written last into a directory: what its users must know of it. */
const READY = 'ready.json'

/** Where it is, and where it is made. */
export interface PreparedPlace {
  /** Names its contents. */
  readonly tag: string
  readonly directory: string
  readonly workDir: string
}

/** Fills `built`, which may hold the finished steps of an interrupted call, and gives facts for its users (JSON). */
export type BuildDirectory<Facts> = (built: string, workDir: string, onProgress: OnProgress) => Promise<Facts>

/** The place below `parent` of a directory with these contents. */
export function placeFor(parent: string, name: string, contents: readonly (string | Uint8Array)[]): PreparedPlace {
  const hash = createHash('sha256')
  for (const content of contents) hash.update(content)
  const tag = hash.digest('hex').slice(0, 12)
  const full = `${name}-${tag}`
  return { tag, directory: join(parent, full), workDir: join(parent, `.${full}`) }
}

/** How far a directory is; when it is ready, with the facts that its builder gave. */
export async function getDirectoryState<Facts>(place: PreparedPlace): Promise<PreparationState<Facts>> {
  return await getPreparationState(prepared<Facts>(place))
}

/** Makes sure that a directory is there, and gives its facts. @throws as {@link prepareOnce}, and whatever `build` throws */
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

/** Takes a directory away. Another process may do the same. */
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
