import type { Interpreter } from './interpreter.ts'

/*
 * The image of a warmed interpreter: its memory without the parts that are zero, a quarter of it, which a new memory has
 * anyway.
 */

/** Memory is looked at in pieces of this size: the page of most processors. */
const PIECE_BYTES = 4_096
/** Zeros between two parts that are not worth a part of their own. */
const ZEROS_MIN = 16 * PIECE_BYTES

/**
 * Free memory that an image has, as zeros that cost nothing. The guest's allocator takes more in steps of 128 KiB, and
 * each of them makes the engine collect garbage: what it sees is a new buffer of some 100 MB.
 */
export const HEADROOM_BYTES = 256 * 1024 * 1024

/** Warms a new interpreter with our Python files, which it finds in a directory of its own. */
export function warm(interpreter: Interpreter, sources: string): void {
  const status = interpreter.run(
    `import sys\nsys.path.insert(0, '${sources}')\nimport wasm_main\nwasm_main.warm(${HEADROOM_BYTES})\nsys.path.remove('${sources}')\n`,
  )
  if (status !== 0) throw new Error(`warming ended with ${status}`)
}

/** The parts of a memory that are not zero. */
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
