/*
 * Rewrites a WebAssembly module before compilation (WebAssembly core specification, binary format). The result has a memory limit that the
 * engine enforces, and lacks sections that a run does not need.
 */

const HEADER_BYTES = 8
const SECTION = { custom: 0, memory: 5, data: 11 } as const

export const PAGE_BYTES = 65_536

/**
 * Returns a copy of a module whose only memory cannot grow beyond `pagesMax`. At the limit, `memory.grow` and the guest's `malloc` fail.
 *
 * @param isRestored Whether an image will fill the memory. The module's initial data is then omitted.
 */
export function limitModule(module: Uint8Array, pagesMax: number, isRestored: boolean): Uint8Array<ArrayBuffer> {
  const parts: Uint8Array[] = [module.subarray(0, HEADER_BYTES)]
  for (let at = HEADER_BYTES; at < module.length; ) {
    const id = module[at]
    const [bytes, body] = readNumber(module, at + 1)
    if (id === SECTION.memory) parts.push(memorySection(module, body, pagesMax))
    // Custom sections are removed, because the engine would keep their contents in memory: 14 MB of names for debuggers.
    else if (id !== SECTION.custom && !(isRestored && id === SECTION.data))
      parts.push(module.subarray(at, body + bytes))
    at = body + bytes
  }
  return Buffer.concat(parts)
}

function memorySection(module: Uint8Array, body: number, pagesMax: number): Uint8Array {
  const [count, flagsAt] = readNumber(module, body)
  if (count !== 1) throw new Error('the module must have exactly one memory')
  const [pagesMin] = readNumber(module, flagsAt + 1)
  const hasMaximum = 1
  const content = [1, hasMaximum, ...encodeNumber(pagesMin), ...encodeNumber(pagesMax)]
  return Uint8Array.from([SECTION.memory, ...encodeNumber(content.length), ...content])
}

function readNumber(bytes: Uint8Array, at: number): [value: number, after: number] {
  let value = 0
  for (let i = 0; ; i++) {
    const byte = bytes[at + i] ?? 0
    value += (byte & 0x7f) * 2 ** (7 * i)
    if (byte < 0x80) return [value, at + i + 1]
  }
}

function encodeNumber(value: number): number[] {
  const low = value % 128
  return value < 128 ? [low] : [low | 0x80, ...encodeNumber(Math.floor(value / 128))]
}
