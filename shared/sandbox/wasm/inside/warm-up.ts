import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { encodeFrame, FrameReader } from '#shared/sandbox/protocol/frames.ts'
import { findSegments, warm } from './image.ts'
import { Interpreter, type Library, SOURCES } from './interpreter.ts'
import { limitModule, PAGE_BYTES } from './module.ts'
import { LIBRARY_FILES, readLibrary } from './prepared-files.ts'
import { compile } from './wasi/engine.ts'

const PAGES_MAX = 1024 ** 3 / PAGE_BYTES
const CHUNK_BYTES = 1 << 20
const VERSIONS_BYTES_MAX = 1 << 16

export interface ImageFacts {
  readonly libraries: Readonly<Record<string, string>>
  readonly segments: ReadonlyArray<readonly [address: number, length: number]>
  readonly pages: number
}

/** Writes an interpreter with loaded libraries to standard output: frames `M` with its memory in order, then a frame `L` with its facts. */
export async function warmUp(libraryDir: string, sourcesDir: string): Promise<void> {
  const library = await readLibrary(libraryDir, await readSources(sourcesDir))
  const module = await compile(limitModule(await readFile(join(libraryDir, LIBRARY_FILES.module)), PAGES_MAX, false))
  const reader = new FrameReader(VERSIONS_BYTES_MAX)
  let libraries: ImageFacts['libraries'] = {}
  const interpreter = new Interpreter(module, library, {
    stdin: () => 0,
    onStdout: () => {},
    onStderr: (bytes) => process.stderr.write(Buffer.from(bytes)),
    onChannel: (bytes) => {
      for (const { payload } of reader.push(Buffer.from(bytes))) libraries = JSON.parse(payload.toString())
    },
  })
  warm(interpreter, SOURCES)
  const memory = interpreter.image()
  const segments = findSegments(memory)
  for (const [address, length] of segments) await writeMemory(memory.subarray(address, address + length))
  const facts = { libraries, segments, pages: memory.length / PAGE_BYTES }
  process.stdout.write(encodeFrame('L', Buffer.from(JSON.stringify(facts satisfies ImageFacts))), () => process.exit(0))
}

async function readSources(directory: string): Promise<Library['sources']> {
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.py'))
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await readFile(join(directory, name))])))
}

async function writeMemory(bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
    const isFull = !process.stdout.write(encodeFrame('M', bytes.subarray(at, at + CHUNK_BYTES)))
    if (isFull) await once(process.stdout, 'drain')
  }
}
