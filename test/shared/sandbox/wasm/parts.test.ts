import { describe, expect, it } from 'vitest'
import { encodeFrame, FrameReader } from '#shared/sandbox/protocol/frames.ts'
import { PLOT_BYTES_MAX, PLOTS_MAX } from '#shared/sandbox/protocol/limits.ts'
import { GuestChannel } from '#shared/sandbox/wasm/inside/channel.ts'
import { findSegments } from '#shared/sandbox/wasm/inside/image.ts'
import { limitModule } from '#shared/sandbox/wasm/inside/module.ts'
import { makeOutputBuffer, OutputBuffers, SharedOutput } from '#shared/sandbox/wasm/inside/shared-output.ts'
import { compile, Instance, type Memory } from '#shared/sandbox/wasm/inside/wasi/engine.ts'
import { Restarts } from '#shared/sandbox/wasm/wasm.ts'

const verdict = (...violations: string[]) => encodeFrame('V', Buffer.from(JSON.stringify({ violations })))
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 1, 2, 3])

describe('the channel from the WebAssembly guest', () => {
  const channel = () => {
    const plots: Buffer[] = []
    return { plots, channel: new GuestChannel((png) => plots.push(png)) }
  }

  it('accepts only the first verdict of the code scan', () => {
    const { channel: guest } = channel()
    guest.write(verdict('line 1: no'))
    guest.write(verdict())
    expect(guest.violations).toEqual(['line 1: no'])
  })

  it('accepts only PNG plots, in chunks of any size', () => {
    const { channel: guest, plots } = channel()
    const bytes = Buffer.concat([
      verdict(),
      encodeFrame('P', PNG),
      encodeFrame('P', Buffer.from('GIF89a..')),
      encodeFrame('P', PNG),
    ])
    for (const byte of bytes) guest.write(Uint8Array.of(byte))
    expect(plots).toEqual([PNG, PNG])
  })

  it('accepts at most the maximum number of plots', () => {
    const { channel: guest, plots } = channel()
    guest.write(verdict())
    for (let i = 0; i < PLOTS_MAX + 5; i++) guest.write(encodeFrame('P', PNG))
    expect(plots).toHaveLength(PLOTS_MAX)
  })

  it.each([
    ['a frame of unknown type', encodeFrame('X', Buffer.from('{"type":"exit","exit_code":0}'))],
    ['bytes without a frame header', Buffer.from('print this, please')],
    ['a frame above the maximum length', Buffer.concat([Buffer.from('P'), Buffer.from([0xff, 0xff, 0xff, 0xff])])],
    ['a plot before the verdict', encodeFrame('P', PNG)],
  ])('ignores everything after %s', (_what, bytes) => {
    const { channel: guest, plots } = channel()
    guest.write(bytes)
    guest.write(Buffer.concat([verdict(), encodeFrame('P', PNG)]))
    expect(plots).toEqual([])
  })
})

it('the frame reader refuses a frame above the maximum length at its header', () => {
  const reader = new FrameReader(PLOT_BYTES_MAX)
  const header = encodeFrame('P', Buffer.alloc(0))
  header.writeUInt32BE(PLOT_BYTES_MAX + 1, 1)
  expect(() => [...reader.push(header)]).toThrow(RangeError)
})

describe('the shared output buffer of a run', () => {
  it('announces new output once until the output is read', () => {
    const writer = new SharedOutput(makeOutputBuffer(16))
    const reader = new SharedOutput(writer.buffer)
    expect([writer.write(Buffer.from('ab')), writer.write(Buffer.from('c'))]).toEqual([true, false])
    expect(reader.take().toString()).toBe('abc')
    expect(writer.write(Buffer.from('d'))).toBe(true)
    expect(reader.take().toString()).toBe('d')
  })

  it('is truncated at its maximum, and counts all written bytes', () => {
    const writer = new SharedOutput(makeOutputBuffer(4))
    writer.write(Buffer.from('abc'))
    writer.write(Buffer.from('defgh'))
    expect([writer.take().toString(), writer.total]).toEqual(['abcd', 8])
  })
})

it('a reused output buffer contains no data of the previous run', () => {
  const buffers = new OutputBuffers(4)
  const first = new SharedOutput(buffers.take())
  first.write(Buffer.from('abcdef'))
  buffers.giveBack(first.buffer)
  const second = new SharedOutput(buffers.take())
  expect(second.buffer).toBe(first.buffer)
  expect([second.take().toString(), second.total, second.write(Buffer.from('x'))]).toEqual(['', 0, true])
  expect(Buffer.from(second.buffer).includes('bcd')).toBe(false)
})

describe('a WebAssembly module with rewritten memory limits', () => {
  /** Bytes of a WebAssembly module: a memory of 1 page without a maximum, exported as `m` and initialised with `hi`, and a custom section. */
  const module = Buffer.from(
    '0061736d01000000' + '0503010001' + '07050101' + '6d0200' + '0b08010041000b026869' + '00050161626364',
    'hex',
  )

  it('cannot grow its memory beyond the maximum', async () => {
    const instance = new Instance(await compile(limitModule(module, 3, false)), {})
    const { m } = instance.exports as { m: Memory }
    expect(m.grow(2)).toBe(1)
    expect(() => m.grow(1)).toThrow(RangeError)
    expect(Buffer.from(m.buffer, 0, 2).toString()).toBe('hi')
  })

  it('starts with zeroed memory if a memory image is loaded later', async () => {
    const instance = new Instance(await compile(limitModule(module, 3, true)), {})
    const { m } = instance.exports as { m: Memory }
    expect(Buffer.from(m.buffer).every((byte) => byte === 0)).toBe(true)
  })
})

it('a memory image omits long runs of zeros, and no other bytes', () => {
  const memory = new Uint8Array(1 << 20)
  memory[5] = 1
  memory[200_000] = 2
  memory[1_048_575] = 3
  const segments = findSegments(memory)
  const restored = new Uint8Array(memory.length)
  for (const [address, length] of segments) restored.set(memory.subarray(address, address + length), address)
  expect(Buffer.from(restored).equals(memory)).toBe(true)
  expect(segments.reduce((sum, [, length]) => sum + length, 0)).toBeLessThan(100_000)
})

describe('the restarts of a sandbox interpreter', () => {
  it('are delayed increasingly, and are refused with sandbox_unavailable after too many restarts in five minutes', () => {
    let nowMs = 0
    const restarts = new Restarts(() => nowMs)
    expect(restarts.delayMs(1)).toBe(0)
    const delays = [1, 2, 3, 4].map(() => {
      restarts.note()
      nowMs += 1_000
      return restarts.delayMs(1)
    })
    expect(delays).toEqual([250, 500, 1_000, 2_000])
    restarts.note()
    expect(() => restarts.delayMs(1)).toThrow(
      expect.objectContaining({ code: 'sandbox_unavailable', retryAfterMs: 296_000 }),
    )
    nowMs = 300_000
    expect(restarts.delayMs(1)).toBe(2_000)
  })
})
