import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import type Docker from 'dockerode'
import { ServiceError } from '#shared/error.ts'
import type { PrepareOptions } from '#shared/prepare/prepare.ts'
import { INSIDE_DIRECTORY, prepareRoot } from '#shared/sandbox/root/root.ts'

/** Of the work of a preparation, what the root file system takes; the rest is its import. */
const ROOT_SHARE = 0.8
const REPOSITORY = 'sluice-sandbox'
/** An import copies 400 MB, a pull downloads them. */
const IMPORT_MS_MAX = 10 * 60_000

/** What the image is made of. */
export interface ImageOptions {
  readonly onProgress: (fraction: number, message: string) => void
  readonly signal: AbortSignal
  /** Where the root file system is kept, or made. */
  readonly directory: string
  /** Make and fetch nothing: throw when it is not there. */
  readonly isLookOnly?: boolean
}

/**
 * Makes sure that the daemon has the image of this version, made from the root file system that the zygote uses as well.
 * No registry takes part.
 *
 * @returns its name; it changes with its contents
 * @throws ServiceError `sandbox_unavailable`; an error of the daemon; the abort reason
 */
export async function prepareImage(docker: Docker, options: ImageOptions): Promise<string> {
  const { directory, onProgress, signal, isLookOnly } = options
  const rootOptions: PrepareOptions = {
    signal,
    isLookOnly,
    onProgress: (fraction, what) => onProgress(ROOT_SHARE * fraction, what),
  }
  const root = await prepareRoot(directory, rootOptions)
  const tag = `${root.tag}-${await digest(INSIDE_DIRECTORY)}`
  const name = `${REPOSITORY}:${tag}`
  if (await hasImage(docker, name)) return name
  if (isLookOnly) throw new ServiceError('sandbox_unavailable', 'Its image is not made yet.')
  onProgress(ROOT_SHARE, "importing the sandbox's image (400 MB)")
  await importImage(docker, root.directory, tag, signal)
  return name
}

/**
 * Makes sure that the daemon has an image that somebody built and named.
 *
 * @throws an error of the daemon when it has none and finds none in a registry; the abort reason
 */
export async function pullImage(docker: Docker, name: string, options: ImageOptions): Promise<void> {
  const { onProgress, signal, isLookOnly } = options
  if (await hasImage(docker, name)) return
  if (isLookOnly) throw new ServiceError('sandbox_unavailable', `The daemon does not have the image ${name} yet.`)
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

/** Our code goes into the image, so that the daemon need not be on this machine. */
async function importImage(docker: Docker, root: string, tag: string, signal: AbortSignal): Promise<void> {
  const abortSignal = AbortSignal.any([signal, AbortSignal.timeout(IMPORT_MS_MAX)])
  const names = await codeFiles(INSIDE_DIRECTORY)
  const owner = ['--numeric-owner', '--owner=0', '--group=0']
  // Names of the root begin with a dot; S and H leave the targets of links as they are.
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
    // Half an image would be taken for a whole one at the next start.
    await docker.getImage(`${REPOSITORY}:${tag}`).remove()
    throw new ServiceError('sandbox_unavailable', `tar failed: ${(await problems).slice(-300)}`)
  }
}

/** Reads the daemon's progress to its end. @throws Error with what it says went wrong */
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
