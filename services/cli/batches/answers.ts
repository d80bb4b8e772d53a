/*
 * Assigns the results of one or more batches to the rows of a table.
 *
 * The key of a row is the hash of its request. A row therefore keeps its answer if rows are moved, added or corrected. If several rows have the same
 * request, then the batches have several answers to this request, and each of the rows gets a different answer. If there are as many answers as rows,
 * then they are matched in order. Otherwise, each row first gets the answer that has its own row number. The remaining rows get the remaining answers
 * in order.
 *
 * The result lines are appended to one temporary file, and memory holds only their positions.
 */

import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { linesIn } from '#services/cli/client/http.ts'
import { batchRowOf } from '#shared/kinds/batch-row.ts'
import { type Cells, cellsOf, rowNumberOf, type ValuesOf } from '#shared/tables/answers.ts'

export interface Found {
  readonly start: number
  readonly length: number
  /** False if the line has an error or an invalid answer. */
  readonly isAnswer: boolean
  /** Id of the batch with this result, and the custom id of its request. */
  readonly batch: string
  readonly customId: string
}

export function keyOf(body: unknown): string {
  return createHash('sha256').update(JSON.stringify(body)).digest('hex').slice(0, 32)
}

export class Answers {
  readonly path: string
  readonly #valuesOf: ValuesOf
  readonly #found = new Map<string, { readonly answers: Found[]; error: Found | undefined }>()
  #size = 0

  constructor(path: string, { valuesOf }: { readonly valuesOf: ValuesOf }) {
    this.path = path
    this.#valuesOf = valuesOf
  }

  /**
   * Adds the result lines of a batch.
   *
   * @param batch Id of the batch
   * @param keyOfId Returns the key of the row with this custom id, or undefined if no row has this id
   * @param isNewest If true, then errors of this batch replace the errors of batches that were added before
   */
  async add(
    batch: string,
    lines: AsyncIterable<Buffer>,
    keyOfId: (customId: string) => string | undefined,
    isNewest = false,
  ): Promise<void> {
    let start = this.#size
    await pipeline(lines, createWriteStream(this.path, { flags: 'a' }))
    for await (const line of linesIn(createReadStream(this.path, { start }))) {
      const cells = this.#cellsIn(line)
      const key = cells && keyOfId(cells.customId)
      if (cells && key !== undefined) {
        const found = this.#found.get(key) ?? { answers: [], error: undefined }
        this.#found.set(key, found)
        const isAnswer = cells.error === ''
        const one = { start, length: line.length, isAnswer, batch, customId: cells.customId }
        if (isAnswer) found.answers.push(one)
        else if (isNewest || !found.error) found.error = one
      }
      start += line.length + 1
    }
    this.#size = start
  }

  /**
   * Returns one result line per row: an answer if there is one, otherwise an error, or undefined if the row has
   * neither.
   */
  assign(keys: readonly string[]): (Found | undefined)[] {
    const assigned = new Array<Found | undefined>(keys.length)
    for (const [key, rows] of Map.groupBy(keys.keys(), (nth) => keys[nth] ?? '')) {
      const { answers = [], error } = this.#found.get(key) ?? {}
      const sorted = answers.toSorted((a, b) => rowOf(a) - rowOf(b))
      const hasSameCount = sorted.length === rows.length
      const byRow = new Map(hasSameCount ? [] : sorted.toReversed().map((answer) => [rowOf(answer), answer]))
      const own = rows.map((nth) => byRow.get(nth + 1))
      const taken = new Set(own)
      const rest = sorted.filter((answer) => !taken.has(answer)).values()
      for (const [place, nth] of rows.entries()) assigned[nth] = own[place] ?? rest.next().value ?? error
    }
    return assigned
  }

  async cellsAt(file: FileHandle, { start, length }: Found): Promise<Cells | undefined> {
    const buffer = Buffer.alloc(length)
    await file.read(buffer, 0, length, start)
    return this.#cellsIn(buffer)
  }

  #cellsIn(line: Buffer): (Cells & { readonly customId: string }) | undefined {
    const row = batchRowOf(JSON.parse(line.toString()))
    return row && { ...cellsOf(row, this.#valuesOf), customId: row.customId }
  }
}

function rowOf({ customId }: Found): number {
  return rowNumberOf(customId) ?? 0
}
