import { describe, expect, test } from 'vitest'
import { runToEnd } from '#shared/lib/yielding.ts'
import { isRepeat, printOf } from '#shared/search/text/duplicates.ts'

const isSame = (text: string, other: string): boolean => {
  return runToEnd(isRepeat(runToEnd(printOf(text)), runToEnd(printOf(other))))
}

const ARTICLE = `The harbour authority will close the northern gate for eleven weeks while engineers replace the hinges.

Ships of more than sixty metres are asked to use the southern gate, which opens twice a day with the tide. Smaller boats may pass
the lock beside it at any hour, as they always could.

The hinges were made in 1931 and have been mended nine times. “They have done more than anybody could ask of them,” said the master
of the harbour, who has worked there for three decades. New ones are forged in one piece, weigh eleven tonnes each, and arrive by
barge before the end of May.

Fishermen fear that the detour costs them an hour on every trip. The authority has offered to pay for the fuel, and to keep the ice
house open through the night. A survey of the sea bed found no wrecks where the barges will lie, but it did find an anchor of a ship
that was lost in a storm two centuries ago, which goes to the museum.

Work begins on the first Monday after the regatta. If the weather turns, the gate is opened again for as long as it takes, because
the inner basin cannot be drained while the wind stands in the north. The council will hear from the engineers every fortnight, and
its sessions are open to all who live in the town.`

describe('the duplicate detection of texts', () => {
  test('treats texts that differ in case, punctuation and white space as duplicates', () => {
    expect(isSame(ARTICLE, ARTICLE.toUpperCase().replaceAll('“', '"').replaceAll('\n', '  \n'))).toBe(true)
    expect(isSame('The gate opens at nine.', 'the gate opens — at nine')).toBe(true)
  })

  test('treats texts that differ in the header or footer of their site as duplicates', () => {
    const [coast, times] = [`Coast Post\n\n${ARTICLE}`, `${ARTICLE}\n\nHarbour Times.`]
    expect(isSame(coast, ARTICLE)).toBe(true)
    expect(isSame(ARTICLE, coast)).toBe(true)
    expect(isSame(times, ARTICLE)).toBe(true)
  })

  test.each([
    ['another number', 'mended nine times', 'mended twelve times'],
    ['another year', '1931', '1913'],
    ['another name', 'northern gate', 'eastern gate'],
    ['a negation', 'A survey of the sea bed found no wrecks', 'A survey of the sea bed found wrecks'],
    ['another end', 'which goes to the museum', 'which stays where it is'],
  ])('treats texts that differ by %s in one sentence as distinct', (_, from, to) => {
    expect(isSame(ARTICLE.replace(from, to), ARTICLE)).toBe(false)
    expect(isSame(ARTICLE, ARTICLE.replace(from, to))).toBe(false)
  })

  test.each([
    ['The gate opens at nine.', 'The gate opens at ten.'],
    ['Berlin: 12 °C, rain.', 'Bonn: 12 °C, rain.'],
    ['Room 4 is free.', 'Room 5 is free.'],
    ['', 'A gate.'],
    ['A worker renews its lease.', 'A worker renews its lease. It does so three times.'],
  ])('treats short texts from one template as distinct: %s', (a, b) => {
    expect(isSame(a, b)).toBe(false)
    expect(isSame(b, a)).toBe(false)
  })

  test('treats long texts from one template as distinct if a value differs', () => {
    const template = (city: string, degrees: number) => {
      return `${ARTICLE.replaceAll('harbour', 'weather station')}\n\nIn ${city} it was ${degrees} degrees at noon.\n\n${city} | ${degrees}`
    }
    const texts = ['Berlin', 'Bonn', 'Bremen'].flatMap((city) => [11, 12].map((degrees) => template(city, degrees)))
    for (const a of texts) for (const b of texts) expect(isSame(a, b)).toBe(a === b)
  })

  test('treats texts about one subject as distinct', () => {
    const sentences = ARTICLE.split(/(?<=\.)\s+/)
    expect(isSame(sentences.slice(0, 8).join(' '), sentences.slice(6).join(' '))).toBe(false)
  })

  test('processes a long text in many steps, whatever the length of its words and sentences', () => {
    for (const text of ['word '.repeat(10_000), 'x'.repeat(50_000), 'A. '.repeat(16_000)]) {
      const steps = [...printOf(text)].length
      expect(steps).toBeGreaterThan(text.startsWith('x') ? 0 : 40)
    }
  })
})
