import { WasiError } from './abi.ts'
import type { Memory } from './engine.ts'

const BUFFERS_MAX = 1_024
const PATH_BYTES_MAX = 4_096

/**
 * The guest's memory with checked addresses.
 *
 * Addresses and lengths come from hostile code. An invalid address returns errno `fault` to the guest and never causes an exception
 * outside.
 */
export class GuestMemory {
  #memory: Memory | undefined
  #view = new DataView(new ArrayBuffer(0))

  /** Called after the WebAssembly module is instantiated. The imports of the module need this object before the memory exists. */
  attach(memory: Memory): void {
    this.#memory = memory
  }

  /** Returns the memory itself, not a copy. Valid until the guest runs again, because growth replaces the buffer. */
  bytes(address: number, length: number): Uint8Array<ArrayBuffer> {
    const start = address >>> 0
    return new Uint8Array(this.#at(start, length >>> 0).buffer as ArrayBuffer, start, length >>> 0)
  }

  path(address: number, length: number): string {
    if (length >>> 0 > PATH_BYTES_MAX) throw new WasiError('nametoolong')
    return new TextDecoder().decode(this.bytes(address, length))
  }

  *buffers(address: number, count: number): Iterable<Uint8Array<ArrayBuffer>> {
    if (count >>> 0 > BUFFERS_MAX) throw new WasiError('inval')
    for (let i = 0; i < count; i++) {
      const at = (address >>> 0) + i * 8
      yield this.bytes(this.getU32(at), this.getU32(at + 4))
    }
  }

  getU8(address: number): number {
    return this.#at(address >>> 0, 1).getUint8(address >>> 0)
  }

  getU16(address: number): number {
    return this.#at(address >>> 0, 2).getUint16(address >>> 0, true)
  }

  getU32(address: number): number {
    return this.#at(address >>> 0, 4).getUint32(address >>> 0, true)
  }

  getU64(address: number): bigint {
    return this.#at(address >>> 0, 8).getBigUint64(address >>> 0, true)
  }

  setU8(address: number, value: number): void {
    this.#at(address >>> 0, 1).setUint8(address >>> 0, value)
  }

  setU16(address: number, value: number): void {
    this.#at(address >>> 0, 2).setUint16(address >>> 0, value, true)
  }

  setU32(address: number, value: number): void {
    this.#at(address >>> 0, 4).setUint32(address >>> 0, value, true)
  }

  setU64(address: number, value: bigint): void {
    this.#at(address >>> 0, 8).setBigUint64(address >>> 0, value, true)
  }

  #at(address: number, length: number): DataView {
    // When the memory grows, its buffer is replaced and the old one is detached, so a new view is needed.
    if (this.#memory && this.#view.buffer !== this.#memory.buffer) this.#view = new DataView(this.#memory.buffer)
    if (address + length > this.#view.byteLength) throw new WasiError('fault')
    return this.#view
  }
}
