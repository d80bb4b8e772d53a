import { once } from 'node:events'
import { type FileHandle, mkdir, open } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type ConfinedChild, collectErrors, spawnConfined } from './child.ts'
import { FrameReader } from './inside/frames.ts'
import { IMAGE_MEMORY } from './inside/prepared-files.ts'
import type { ImageFacts } from './inside/warm-up.ts'

const SOURCES = fileURLToPath(new URL('../python/', import.meta.url))
const FRAME_BYTES_MAX = 1 << 20
/** Timeout of loading the libraries, which takes 6 seconds of CPU time. */
const WARM_MS_MAX = 5 * 60_000

/**
 * Loads the libraries into an interpreter in a confined process, and writes its memory into `built`.
 *
 * @returns Facts about the image
 * @throws Error with the output of the process, or the abort reason
 */
export async function buildImage(
  built: string,
  libraryDir: string,
  signal: AbortSignal | undefined,
): Promise<ImageFacts> {
  await mkdir(built, { recursive: true })
  await using file = await open(join(built, IMAGE_MEMORY), 'w')
  const child = spawnConfined(['warm-up', libraryDir, SOURCES], [libraryDir, SOURCES])
  const errors = collectErrors(child)
  const closed = once(child, 'close')
  const limit = AbortSignal.any([AbortSignal.timeout(WARM_MS_MAX), ...(signal ? [signal] : [])])
  const kill = () => child.kill('SIGKILL')
  limit.addEventListener('abort', kill, { once: true })
  try {
    const facts = await writeImage(child, file)
    const [code, killedBy] = await closed
    if (facts) return facts
    signal?.throwIfAborted()
    throw new Error(`the interpreter was not warmed (${code ?? killedBy}): ${errors()}`)
  } finally {
    limit.removeEventListener('abort', kill)
    child.kill('SIGKILL')
    await closed
  }
}

async function writeImage(child: ConfinedChild, file: FileHandle): Promise<ImageFacts | undefined> {
  const reader = new FrameReader(FRAME_BYTES_MAX)
  for await (const chunk of child.stdout) {
    for (const { type, payload } of reader.push(chunk)) {
      if (type === 'L') return JSON.parse(payload.toString()) as ImageFacts
      await file.write(payload)
    }
  }
  return undefined
}
