/**
 * Tests how the service reads from the channel to a sandbox supervisor. The reader must enforce its limits, whatever bytes the supervisor
 * sends.
 */
import { describe, expect, test } from 'vitest'
import { runToEnd } from '#shared/lib/yielding.ts'
import { Channel, encodeJob } from '#shared/sandbox/channel.ts'
import { OUTPUT_BYTES_MAX, PLOT_BYTES_MAX, PLOTS_MAX } from '#shared/sandbox/protocol/limits.ts'
import type { SandboxEnd, SandboxEvent } from '#shared/sandbox/sandbox.ts'

const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])

function frame(type: string, payload: Uint8Array | string | object): Buffer {
  const isBytes = payload instanceof Uint8Array
  const body = isBytes ? payload : Buffer.from(typeof payload === 'string' ? payload : JSON.stringify(payload))
  const head = Buffer.alloc(5)
  head.write(type, 'latin1')
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}

function openChannel() {
  const events: SandboxEvent[] = []
  const ends: SandboxEnd[] = []
  const channel = new Channel({ onEvent: (event) => events.push(event), onEnd: (end) => ends.push(end) })
  return { channel, events, ends }
}

const said = (events: readonly SandboxEvent[]) =>
  events.map((event) => (event.type === 'output' ? `${event.stream}: ${event.text}` : `plot of ${event.png.length}`))

describe('the channel between the sandbox and its supervisor', () => {
  test('delivers frames in order, however they are split', () => {
    const { channel, events, ends } = openChannel()
    const frames = [frame('O', 'ä'), frame('P', PNG), frame('E', 'b'), frame('X', { type: 'exit', exit_code: 3 })]
    for (const byte of Buffer.concat(frames)) channel.take(Buffer.from([byte]))
    expect(said(events)).toEqual(['stdout: ä', 'plot of 8', 'stderr: b'])
    expect(ends).toEqual([{ type: 'exit', exitCode: 3 }])
  })

  test('joins a character that is split between two frames', () => {
    const { channel, events } = openChannel()
    const [first, second] = Buffer.from('ä')
    channel.take(frame('O', Buffer.from([first as number])))
    channel.take(frame('O', Buffer.from([second as number, first as number])))
    channel.take(frame('X', { type: 'timeout' }))
    expect(said(events)).toEqual(['stdout: ä', 'stdout: \uFFFD'])
  })

  test('ignores everything after the end frame', () => {
    const { channel, events, ends } = openChannel()
    channel.take(Buffer.concat([frame('X', { type: 'timeout' }), frame('O', 'late'), frame('X', { type: 'timeout' })]))
    expect(events).toEqual([])
    expect(ends).toEqual([{ type: 'timeout' }])
  })

  test.each([
    ['a frame of unknown type', frame('Z', '')],
    ['a frame above the maximum length', Buffer.from([0x4f, 0xff, 0xff, 0xff, 0xff])],
    ['an image frame that is no PNG', frame('P', '<script>')],
    ['more images than the maximum', Buffer.concat(Array(PLOTS_MAX + 1).fill(frame('P', PNG)))],
    [
      'images above the maximum total size',
      Buffer.concat(Array(5).fill(frame('P', Buffer.concat([PNG, Buffer.alloc(PLOT_BYTES_MAX - PNG.length)])))),
    ],
    ['output above the maximum size', Buffer.concat(Array(17).fill(frame('O', Buffer.alloc(OUTPUT_BYTES_MAX / 16))))],
    ['an end frame with an invalid exit code', frame('X', { type: 'exit', exit_code: 256 })],
    ['an end frame with invalid JSON', frame('X', '{')],
    ['an end frame with an empty list of violations', frame('X', { type: 'violations', violations: [] })],
  ])('fails with sandbox_lost at %s', (_, bytes) => {
    const { channel, ends } = openChannel()
    expect(() => channel.take(bytes)).toThrow(expect.objectContaining({ code: 'sandbox_lost' }))
    channel.take(frame('X', { type: 'timeout' }))
    expect(ends).toEqual([])
  })

  test('sends a job with its limits, preceded by a header and the length', () => {
    const bytes = runToEnd(encodeJob({ code: 'print(1)', timeoutMs: 2_000, scan: true }))
    expect(bytes.subarray(0, 8).toString('latin1')).toBe('\0SANDBOX')
    expect(bytes.readUInt32BE(8)).toBe(bytes.length - 12)
    const job = JSON.parse(bytes.subarray(12).toString())
    expect(job).toMatchObject({ code: 'print(1)', timeout_ms: 2_000, scan: true, limits: { plots: PLOTS_MAX } })
  })
})
