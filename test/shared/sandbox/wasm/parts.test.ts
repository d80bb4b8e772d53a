import { describe, expect, it } from 'vitest'
import { PLOT_BYTES_MAX, PLOTS_MAX } from '#shared/sandbox/limits.ts'
import { compile, Instance, type Memory } from '#shared/sandbox/wasm/inside/engine.ts'
import { encodeFrame, FrameReader } from '#shared/sandbox/wasm/inside/frames.ts'
import { GuestChannel } from '#shared/sandbox/wasm/inside/guest/channel.ts'
import { findSegments } from '#shared/sandbox/wasm/inside/image.ts'
import { limitModule } from '#shared/sandbox/wasm/inside/module.ts'
import { makeOutputBuffer, OutputBuffers, SharedOutput } from '#shared/sandbox/wasm/inside/shared-output.ts'
import { Restarts } from '#shared/sandbox/wasm/wasm.ts'

const verdict = (...violations: string[]) => encodeFrame('V', Buffer.from(JSON.stringify({ violations })))
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 1, 2, 3])

describe('the channel of the guest', () => {
  const channel = () => {
    const plots: Buffer[] = []
    return { plots, channel: new GuestChannel((png) => plots.push(png)) }
  }

  it('accepts the first verdict only', () => {
    const { channel: guest } = channel()
    guest.write(verdict('line 1: no'))
    guest.write(verdict())
    expect(guest.violations).toEqual(['line 1: no'])
  })

  it('accepts plots in any pieces, after the verdict and only if they are PNG', () => {
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

  it('accepts no more plots than the maximum', () => {
    const { channel: guest, plots } = channel()
    guest.write(verdict())
    for (let i = 0; i < PLOTS_MAX + 5; i++) guest.write(encodeFrame('P', PNG))
    expect(plots).toHaveLength(PLOTS_MAX)
  })

  it.each([
    ['a type that is not known', encodeFrame('X', Buffer.from('{"type":"exit","exit_code":0}'))],
    ['bytes that are no frame', Buffer.from('print this, please')],
    ['a length above the cap', Buffer.concat([Buffer.from('P'), Buffer.from([0xff, 0xff, 0xff, 0xff])])],
    ['a plot before the verdict', encodeFrame('P', PNG)],
  ])('ignores everything after %s', (_what, bytes) => {
    const { channel: guest, plots } = channel()
    guest.write(bytes)
    guest.write(Buffer.concat([verdict(), encodeFrame('P', PNG)]))
    expect(plots).toEqual([])
  })
})

it('a reader of frames buffers no more than one frame of the maximum length', () => {
  const reader = new FrameReader(PLOT_BYTES_MAX)
  const header = encodeFrame('P', Buffer.alloc(0))
  header.writeUInt32BE(PLOT_BYTES_MAX + 1, 1)
  expect(() => [...reader.push(header)]).toThrow(RangeError)
})

describe('pending output', () => {
  it('is announced once until it is read, and is readable without an announcement', () => {
    const writer = new SharedOutput(makeOutputBuffer(16))
    const reader = new SharedOutput(writer.buffer)
    expect([writer.write(Buffer.from('ab')), writer.write(Buffer.from('c'))]).toEqual([true, false])
    expect(reader.take().toString()).toBe('abc')
    expect(writer.write(Buffer.from('d'))).toBe(true)
    expect(reader.take().toString()).toBe('d')
  })

  it('ends at its maximum, and counts the excess', () => {
    const writer = new SharedOutput(makeOutputBuffer(4))
    writer.write(Buffer.from('abc'))
    writer.write(Buffer.from('defgh'))
    expect([writer.take().toString(), writer.total]).toEqual(['abcd', 8])
  })
})

it('a reused output buffer contains nothing of the previous run', () => {
  const buffers = new OutputBuffers(4)
  const first = new SharedOutput(buffers.take())
  first.write(Buffer.from('abcdef'))
  buffers.giveBack(first.buffer)
  const second = new SharedOutput(buffers.take())
  expect(second.buffer).toBe(first.buffer)
  expect([second.take().toString(), second.total, second.write(Buffer.from('x'))]).toEqual(['', 0, true])
  expect(Buffer.from(second.buffer).includes('bcd')).toBe(false)
})

describe('a rewritten module', () => {
  /** One memory of 1 page without a maximum, exported as `m`, with `hi` in it, and a custom section. */
  const module = Buffer.from(
    '0061736d01000000' + '0503010001' + '07050101' + '6d0200' + '0b08010041000b026869' + '00050161626364',
    'hex',
  )

  it('cannot grow beyond its maximum', async () => {
    const instance = new Instance(await compile(limitModule(module, 3, false)), {})
    const { m } = instance.exports as { m: Memory }
    expect(m.grow(2)).toBe(1)
    expect(() => m.grow(1)).toThrow(RangeError)
    expect(Buffer.from(m.buffer, 0, 2).toString()).toBe('hi')
  })

  it('has no data of its own when restored from an image', async () => {
    const instance = new Instance(await compile(limitModule(module, 3, true)), {})
    const { m } = instance.exports as { m: Memory }
    expect(Buffer.from(m.buffer).every((byte) => byte === 0)).toBe(true)
  })
})

it('an image omits long runs of zeros and no other byte', () => {
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

describe('restarts of an interpreter', () => {
  it('follow after a growing delay, until there were too many, and again when the oldest has expired', () => {
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
