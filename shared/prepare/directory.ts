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
 * A directory that is built once per machine. The build fills a work directory next to the final path, and a rename then moves it there. The name
 * contains a hash of the contents, so each version has a directory of its own.
 */

/**
 * Name of the file that is written last, and therefore marks a complete directory. The file contains facts for users of the directory, such as a
 * version, as JSON.
 */
const READY = 'ready.json'

export interface PreparedPlace {
  readonly tag: string
  readonly directory: string
  readonly workDir: string
}

/**
 * Builds the content in the directory `built`. If an earlier build was interrupted, then `built` contains its finished steps. Returns the facts that
 * are stored for users of the directory (JSON).
 */
export type BuildDirectory<Facts> = (built: string, workDir: string, onProgress: OnProgress) => Promise<Facts>

export function placeFor(parent: string, name: string, contents: readonly (string | Uint8Array)[]): PreparedPlace {
  const hash = createHash('sha256')
  for (const content of contents) hash.update(content)
  const tag = hash.digest('hex').slice(0, 12)
  const full = `${name}-${tag}`
  return { tag, directory: join(parent, full), workDir: join(parent, `.${full}`) }
}

/** Returns the preparation state of a directory. For a ready directory, the state includes the facts that its builder returned. */
export async function getDirectoryState<Facts>(place: PreparedPlace): Promise<PreparationState<Facts>> {
  return await getPreparationState(prepared<Facts>(place))
}

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
