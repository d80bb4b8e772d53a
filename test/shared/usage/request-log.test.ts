import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { RequestLog, RequestRow } from '#shared/store/requests.ts'
import { RequestBatches } from '#shared/usage/request-log.ts'
import { silentLog } from '../../support/jobs/jobs.ts'

const rowOf = (nth: number) => ({ id: `req_${nth}` }) as RequestRow

describe('the write groups of the request log', () => {
  beforeEach(() => void vi.useFakeTimers())
  afterEach(() => void vi.useRealTimers())

  it('contain the rows of one second, but at most 500 rows', async () => {
    const written: number[] = []
    let ended = 0
    const writes: PromiseWithResolvers<void>[] = []
    const add = (rows: readonly RequestRow[]) => {
      written.push(rows.length)
      const write = Promise.withResolvers<void>()
      writes.push(write)
      return write.promise
    }
    const batches = new RequestBatches({
      requests: { add } as unknown as RequestLog,
      log: silentLog,
      onDropped: () => {},
    })
    const end = (calls: number) => {
      for (let i = 0; i < calls; i++) batches.add(rowOf(ended++))
    }
    end(500)
    expect(written).toEqual([500])
    end(3)
    writes[0]?.resolve()
    await vi.advanceTimersByTimeAsync(900)
    end(4)
    expect(written, 'batches before the second is over').toEqual([500])
    await vi.advanceTimersByTimeAsync(200)
    expect(written).toEqual([500, 7])
    end(600)
    writes[1]?.resolve()
    await vi.advanceTimersByTimeAsync(0)
    expect(written).toEqual([500, 7, 500])
    writes[2]?.resolve()
    await vi.advanceTimersByTimeAsync(1_100)
    expect(written).toEqual([500, 7, 500, 100])
    writes[3]?.resolve()
    end(1)
    const closed = batches.close()
    await vi.advanceTimersByTimeAsync(0)
    writes[4]?.resolve()
    await closed
    expect(written).toEqual([500, 7, 500, 100, 1])
  })
  it('are still written after a slow or failed write', async () => {
    const written: string[][] = []
    let write = Promise.withResolvers<void>()
    const add = (rows: readonly RequestRow[]) => {
      written.push(rows.map(({ id }) => id))
      return write.promise
    }
    const requests = { add } as unknown as RequestLog
    const batches = new RequestBatches({ requests, log: silentLog, onDropped: () => {} })
    batches.add(rowOf(0))
    await vi.advanceTimersByTimeAsync(1_100)
    batches.add(rowOf(1))
    await vi.advanceTimersByTimeAsync(3_000)
    expect(written, 'rows while the first write runs').toEqual([['req_0']])
    write.resolve()
    await vi.advanceTimersByTimeAsync(1_100)
    expect(written, 'rows after the slow write').toEqual([['req_0'], ['req_1']])
    write = Promise.withResolvers<void>()
    batches.add(rowOf(2))
    await vi.advanceTimersByTimeAsync(1_100)
    batches.add(rowOf(3))
    await vi.advanceTimersByTimeAsync(3_000)
    write.reject(new Error('unavailable'))
    await vi.advanceTimersByTimeAsync(0)
    write = Promise.withResolvers<void>()
    write.resolve()
    await vi.advanceTimersByTimeAsync(2_100)
    expect(written.slice(2), 'rows after the failed write').toEqual([['req_2'], ['req_2', 'req_3']])
    for (let i = 4; i < 504; i++) batches.add(rowOf(i))
    await vi.advanceTimersByTimeAsync(0)
    expect(written[4]?.length, 'a full batch after the failure').toBe(500)
  })
})
