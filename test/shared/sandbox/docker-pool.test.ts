import { describe, expect, it, vi } from 'vitest'
import { ServiceError } from '#shared/lib/error.ts'
import { AttachedStreams } from '#shared/sandbox/docker/container.ts'
import { type PoolMember, WarmPool } from '#shared/sandbox/docker/pool.ts'
import { until } from '../../support/stack.ts'

const never = new AbortController().signal

/** Simulated containers. The test can end each one, and reads whether the pool has disposed it. */
function members() {
  const all: (PoolMember & { readonly id: number; readonly end: () => void; isDisposed: boolean })[] = []
  const make = () => {
    const { promise, resolve } = Promise.withResolvers<void>()
    const member = {
      id: all.length,
      ended: promise,
      end: resolve,
      isDisposed: false,
      dispose: async () => {
        member.isDisposed = true
        resolve()
      },
    }
    all.push(member)
    return member
  }
  return { all, make }
}

function openPool(
  start: (signal: AbortSignal) => Promise<ReturnType<ReturnType<typeof members>['make']>>,
  idleMax = 3,
) {
  const failures: unknown[] = []
  const pool = new WarmPool({ start, idleMax, startsMax: 2, onFailure: (error) => failures.push(error) })
  return { pool, failures, [Symbol.asyncDispose]: () => pool.close() }
}

describe('the pool of ready containers', () => {
  it('starts one container in advance, and more after callers had to wait', async () => {
    const { all, make } = members()
    await using opened = openPool(async () => make())
    const { pool } = opened
    await until(() => pool.idle === 1)
    const taken = await Promise.all([pool.take(never), pool.take(never), pool.take(never)])
    expect(new Set(taken.map(({ id }) => id)).size).toBe(3)
    // Two callers found no ready container, and each of them adds one to the number of containers that the pool keeps ready.
    await until(() => pool.idle === 3)
    expect(all).toHaveLength(6)
  })

  it('keeps no more ready containers than the maximum', async () => {
    const { make } = members()
    await using opened = openPool(async () => make(), 2)
    const { pool } = opened
    await Promise.all(Array.from({ length: 10 }, () => pool.take(never)))
    await until(() => pool.idle === 2)
  })

  it('keeps fewer containers ready after ten minutes without callers', async () => {
    vi.useFakeTimers()
    const { all, make } = members()
    const { pool } = openPool(async () => make())
    await Promise.all([pool.take(never), pool.take(never), pool.take(never)])
    await vi.advanceTimersByTimeAsync(1_000)
    expect(pool.idle).toBe(3)
    await vi.advanceTimersByTimeAsync(10 * 60_000)
    expect(pool.idle).toBe(1)
    expect(all.filter(({ isDisposed }) => isDisposed)).toHaveLength(2)
    await pool.close()
    vi.useRealTimers()
  })

  it('replaces a ready container that ends', async () => {
    const { all, make } = members()
    await using opened = openPool(async () => make())
    await until(() => opened.pool.idle === 1)
    all[0]?.end()
    await until(() => opened.pool.idle === 1 && all.length === 2)
    expect((await opened.pool.take(never)).id).toBe(1)
  })

  it('fails callers while container starts fail, and recovers when a start succeeds', async () => {
    const { make } = members()
    let works = false
    await using opened = openPool(async () => {
      if (works) return make()
      throw new ServiceError('sandbox_unavailable', 'the image is gone')
    })
    const { pool, failures } = opened
    await expect(pool.take(never)).rejects.toThrow('the image is gone')
    expect(failures.length).toBeGreaterThanOrEqual(3)
    await expect(pool.take(never)).rejects.toThrow('the image is gone')
    works = true
    await until(() => pool.idle > 0, { withinMs: 20_000 })
    await expect(pool.take(never)).resolves.toBeDefined()
  })

  it('removes a disconnected caller from its queue, and gives the container to the next caller', async () => {
    const { make } = members()
    const gate = Promise.withResolvers<void>()
    await using opened = openPool(async () => {
      await gate.promise
      return make()
    }, 1)
    const leaving = new AbortController()
    const [left, stayed] = [opened.pool.take(leaving.signal), opened.pool.take(never)]
    leaving.abort(new Error('disconnected'))
    await expect(left).rejects.toThrow('disconnected')
    gate.resolve()
    await expect(stayed).resolves.toBeDefined()
  })

  it('stops all ready and starting containers when it is closed', async () => {
    const { all, make } = members()
    const aborted: boolean[] = []
    let starts = 0
    const { pool } = openPool(async (signal) => {
      if (starts++ === 0) return make()
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
      aborted.push(true)
      throw signal.reason
    })
    await pool.take(never)
    const waiting = pool.take(never)
    const refused = expect(waiting).rejects.toThrow('closed')
    await pool.close()
    await refused
    expect(aborted.length).toBeGreaterThan(0)
    expect(pool.idle).toBe(0)
    // The container that a caller has taken is not disposed, because the caller disposes it.
    expect(all.map(({ isDisposed }) => isDisposed)).toEqual([false])
    await expect(pool.take(never)).rejects.toThrow('closed')
  })
})

describe('the output streams of an attached container', () => {
  const frame = (type: number, text: string) => {
    const head = Buffer.alloc(8)
    head.writeUInt8(type)
    head.writeUInt32BE(Buffer.byteLength(text), 4)
    return Buffer.concat([head, Buffer.from(text)])
  }

  it.each([1, 3, 7, 8, 9, 1000])('are separated if they arrive in chunks of %i bytes', (size) => {
    const texts = { stdout: '', stderr: '' }
    const streams = new AttachedStreams((stream, bytes) => {
      texts[stream] += bytes.toString()
    })
    const bytes = Buffer.concat([frame(1, 'out '), frame(2, 'err'), frame(1, ''), frame(1, 'more')])
    for (let at = 0; at < bytes.length; at += size) streams.take(bytes.subarray(at, at + size))
    expect(texts).toEqual({ stdout: 'out more', stderr: 'err' })
  })

  it('are separated even if 100,000 frames have one byte each', () => {
    let count = 0
    const streams = new AttachedStreams(() => {
      count += 1
    })
    streams.take(Buffer.concat(Array.from({ length: 100_000 }, () => frame(1, 'x'))))
    expect(count).toBe(100_000)
  })

  it.each([
    ['an unknown stream type', Buffer.from([9, 0, 0, 0, 0, 0, 0, 1, 65])],
    ['a frame length of 4 GiB', Buffer.from([1, 0, 0, 0, 255, 255, 255, 255])],
  ])('fail with an error at %s', (_what, bytes) => {
    expect(() => new AttachedStreams(() => {}).take(bytes)).toThrow('no stream headers')
  })
})
