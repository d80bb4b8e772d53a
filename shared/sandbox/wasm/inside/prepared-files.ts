import { open } from 'node:fs/promises'
import { join } from 'node:path'
import type { Library } from './interpreter.ts'

export const LIBRARY_FILES = {
  module: 'python.wasm',
  python: 'python-stdlib.zip',
  plotData: 'mpl-data.zip',
  font: 'wqy-microhei.ttc',
} as const
export const IMAGE_MEMORY = 'memory.bin'

export async function readLibrary(directory: string, sources: Library['sources']): Promise<Library> {
  const read = (name: string) => readShared(join(directory, name))
  const { python, plotData, font } = LIBRARY_FILES
  return { python: await read(python), plotData: await read(plotData), font: await read(font), sources }
}

export async function readShared(file: string): Promise<Uint8Array> {
  await using handle = await open(file)
  const { size } = await handle.stat()
  const bytes = new Uint8Array(new SharedArrayBuffer(size))
  for (let read = 0; read < size; ) {
    const { bytesRead } = await handle.read(bytes, read, size - read, read)
    if (bytesRead === 0) throw new Error(`${file} was truncated while it was read: ${read} of ${size} bytes`)
    read += bytesRead
  }
  return bytes
}
