/** Tests dead letters (records that no worker could run): finding one among very many, and deleting it. */
import { describe, expect, it } from 'vitest'
import type { HistoryRecord } from '#shared/broker/broker.ts'
import { type DeadLetter, discard, findDeadLetter, listDeadLetters, SCANNED_MAX } from '#shared/jobs/dead-letters.ts'

/** A replacement of a Kafka topic in memory, with the methods {@link Broker.history} and {@link Broker.send}. */
function topic() {
  const records: HistoryRecord[] = []
  let reads = 0
  return {
    get reads() {
      return reads
    },
    send: async (_channel: string, _partition: number, key: string, value: Buffer) => {
      records.push({ key, value, offset: records.length, sentAtMs: Date.now() })
    },
    history: async (
      _channel: string,
      _partition: number,
      { before = Number.POSITIVE_INFINITY, max }: { before?: number | undefined; max: number },
      onRecord: (record: HistoryRecord) => void,
    ) => {
      reads++
      const older = records.slice(0, Math.min(before, records.length))
      for (const record of older.slice(-max)) onRecord(record)
      return { hasMore: older.length > max }
    },
  }
}

const writeLetter = async (dead: ReturnType<typeof topic>, pool: string, count: number) => {
  for (let nth = 0; nth < count; nth++) await dead.send('dead', 0, `${pool} p@${nth}`, Buffer.from('{}'))
}
const offsets = (letters: readonly DeadLetter[]) => letters.map(({ offset }) => offset)

describe('the list of dead letters', () => {
  it('returns full pages of one pool even if 3,000 records of another pool precede them', async () => {
    const dead = topic()
    await writeLetter(dead, 'code', 5)
    await writeLetter(dead, 'inference', 3_000)
    const isWanted = ({ pool }: DeadLetter) => pool === 'code'
    const first = await listDeadLetters(dead, { max: 3, isMatch: isWanted })
    expect(offsets(first.letters)).toEqual([4, 3, 2])
    const second = await listDeadLetters(dead, { before: first.next, max: 3, isMatch: isWanted })
    expect(offsets(second.letters)).toEqual([1, 0])
    expect(second.next).toBeUndefined()
    expect((await listDeadLetters(dead, { max: 3, isMatch: ({ pool }) => pool === 'research' })).next).toBeUndefined()
  })

  it('searches a bounded number of records per call, and returns a cursor to continue', async () => {
    const dead = topic()
    await writeLetter(dead, 'code', 1)
    await writeLetter(dead, 'inference', SCANNED_MAX + 500)
    const isWanted = ({ pool }: DeadLetter) => pool === 'code'
    const first = await listDeadLetters(dead, { max: 3, isMatch: isWanted })
    expect(first.letters).toEqual([])
    expect(first.next).toBeGreaterThan(0)
    expect(offsets((await listDeadLetters(dead, { before: first.next, max: 3, isMatch: isWanted })).letters)).toEqual([
      0,
    ])
  })

  it('omits dead letters that an operator has discarded', async () => {
    const dead = topic()
    await writeLetter(dead, 'code', 1_200)
    for (const offset of [1_199, 700, 3]) await discard(dead, { offset })
    await writeLetter(dead, 'code', 700)
    const seen: number[] = []
    for (let next: number | undefined, isFirst = true; isFirst || next !== undefined; isFirst = false) {
      const page = await listDeadLetters(dead, { before: next, max: 400 })
      seen.push(...offsets(page.letters))
      next = page.next
    }
    expect(seen).toHaveLength(1_897)
    expect(new Set(seen).size).toBe(1_897)
    for (const offset of [1_199, 700, 3, 1_200, 1_201, 1_202]) expect(seen).not.toContain(offset)
    expect(await findDeadLetter(dead, 1_200)).toBeUndefined()
    expect(await findDeadLetter(dead, 9_999)).toBeUndefined()
    expect((await findDeadLetter(dead, 4))?.offset).toBe(4)
  })
})
