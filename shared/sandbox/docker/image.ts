import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import type Docker from 'dockerode'
import { ServiceError } from '#shared/lib/error.ts'
import type { PrepareOptions } from '#shared/prepare/prepare.ts'
import { INSIDE_DIRECTORY, prepareRoot } from '#shared/sandbox/root/root.ts'

const ROOT_SHARE = 0.8
const REPOSITORY = 'sluice-sandbox'
/** Timeout of an import, which copies 400 MB, and of a pull, which downloads 400 MB. */
const IMPORT_MS_MAX = 10 * 60_000

export interface ImageOptions {
  readonly onProgress: (fraction: number, message: string) => void
  readonly signal: AbortSignal
  readonly directory: string
  /** Do not build or download: throw if the image is missing. */
  readonly checksOnly?: boolean
}

/**
 * Ensures that the daemon has the image of this version. The image is built from the root file system that the zygote also uses, so no
 * registry is needed.
 *
 * @returns The image name, which changes with the contents
 * @throws ServiceError `sandbox_unavailable`; an error of the daemon; the abort reason
 */
export async function prepareImage(docker: Docker, options: ImageOptions): Promise<string> {
  const { directory, onProgress, signal, checksOnly } = options
  const rootOptions: PrepareOptions = {
    signal,
    checksOnly: checksOnly,
    onProgress: (fraction, what) => onProgress(ROOT_SHARE * fraction, what),
  }
  const root = await prepareRoot(directory, rootOptions)
  const tag = `${root.tag}-${await digest(INSIDE_DIRECTORY)}`
  const name = `${REPOSITORY}:${tag}`
  if (await hasImage(docker, name)) return name
  if (checksOnly) throw new ServiceError('sandbox_unavailable', 'The sandbox image has not been built yet.')
  onProgress(ROOT_SHARE, "importing the sandbox's image (400 MB)")
  await importImage(docker, root.directory, tag, signal)
  return name
}

/**
 * Ensures that the daemon has an image that an operator built and named.
 *
 * @throws Error of the daemon if the image is neither on the machine nor in a registry; the abort reason if aborted
 */
export async function pullImage(docker: Docker, name: string, options: ImageOptions): Promise<void> {
  const { onProgress, signal, checksOnly } = options
  if (await hasImage(docker, name)) return
  if (checksOnly) throw new ServiceError('sandbox_unavailable', `The daemon does not have the image ${name} yet.`)
  onProgress(0, `pulling the image ${name}`)
  const abortSignal = AbortSignal.any([signal, AbortSignal.timeout(IMPORT_MS_MAX)])
  await followed(docker, await docker.pull(name, { abortSignal }))
}

async function hasImage(docker: Docker, name: string): Promise<boolean> {
  try {
    await docker.getImage(name).inspect()
    return true
  } catch (error) {
    if ((error as { statusCode?: number }).statusCode === 404) return false
    throw error
  }
}

/** Our code is copied into the image, because the daemon may run on another machine where mounting our folder is impossible. */
async function importImage(docker: Docker, root: string, tag: string, signal: AbortSignal): Promise<void> {
  const abortSignal = AbortSignal.any([signal, AbortSignal.timeout(IMPORT_MS_MAX)])
  const names = await codeFiles(INSIDE_DIRECTORY)
  const owner = ['--numeric-owner', '--owner=0', '--group=0']
  // Names of code files do not begin with a dot, so only these are moved to opt/sandbox. The flags S and H exclude the targets of links.
  const move = '--transform=s,^\\([^./]\\),opt/sandbox/\\1,SH'
  const tar = spawn('tar', [...owner, move, '-cf', '-', '-C', root, '.', '-C', INSIDE_DIRECTORY, ...names], {
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: abortSignal,
  })
  const problems = text(tar.stderr)
  const exited = once(tar, 'exit')
  const answer = await docker.importImage(tar.stdout, { repo: REPOSITORY, tag, abortSignal })
  await followed(docker, answer)
  const [code] = await exited
  if (code !== 0) {
    // Without the removal, the next start would use a partial image as if it were complete.
    await docker.getImage(`${REPOSITORY}:${tag}`).remove()
    throw new ServiceError('sandbox_unavailable', `tar failed: ${(await problems).slice(-300)}`)
  }
}

async function followed(docker: Docker, progress: NodeJS.ReadableStream): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  docker.modem.followProgress(progress, (error) => (error ? reject(error) : resolve()))
  await promise
}

async function digest(directory: string): Promise<string> {
  const hash = createHash('sha256')
  for (const name of await codeFiles(directory)) {
    hash.update(`${name}\n`).update(await readFile(join(directory, name)))
  }
  return hash.digest('hex').slice(0, 12)
}

async function codeFiles(directory: string): Promise<string[]> {
  return (await readdir(directory, { recursive: true })).filter((name) => /\.(py|txt)$/.test(name)).sort()
}
