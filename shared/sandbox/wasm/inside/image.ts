import type { Interpreter } from './interpreter.ts'

/*
 * The image of an interpreter with loaded libraries: its memory without zeros, because new memory is zero anyway. About a quarter of the
 * memory is stored.
 */

/** Zeros are searched in units of this many bytes, the page size of most processors. */
const PIECE_BYTES = 4_096
/** Minimum number of zero bytes between two segments. Fewer zeros are stored as part of a segment. */
const ZEROS_MIN = 16 * PIECE_BYTES

/**
 * Free memory in bytes that is added to an image as zeros, which need no space in the file. Otherwise the guest's allocator would grow the memory in
 * steps of 128 KiB. Each step would replace the memory buffer of about 100 MB, which triggers a garbage
 * collection of V8.
 */
export const HEADROOM_BYTES = 256 * 1024 * 1024

export function warm(interpreter: Interpreter, sources: string): void {
  const status = interpreter.run(
    `import sys\nsys.path.insert(0, '${sources}')\nimport wasm_main\nwasm_main.warm(${HEADROOM_BYTES})\nsys.path.remove('${sources}')\n`,
  )
  if (status !== 0) throw new Error(`Python ended with exit code ${status} while it loaded the libraries`)
}

export function findSegments(memory: Uint8Array): Array<[address: number, length: number]> {
  const segments: Array<[number, number]> = []
  const zeros = Buffer.alloc(PIECE_BYTES)
  for (let at = 0; at < memory.length; at += PIECE_BYTES) {
    if (zeros.equals(memory.subarray(at, at + PIECE_BYTES))) continue
    const last = segments.at(-1)
    if (last && at - (last[0] + last[1]) < ZEROS_MIN) last[1] = at + PIECE_BYTES - last[0]
    else segments.push([at, PIECE_BYTES])
  }
  return segments
}
