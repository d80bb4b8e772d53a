import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { findEnvironment } from '../../support/speech/running.ts'

const environment = await findEnvironment()
const code = fileURLToPath(new URL('../../../shared/local-server/python', import.meta.url))
const script = fileURLToPath(new URL('../../support/speech/cluster.py', import.meta.url))

type Piece = readonly [degrees: number, seconds: number, track: number]

/**
 * Returns consecutive pieces of one voice. A voice is represented by an angle on a circle; angles of 60° and 70° correspond to distances of 0.5
 * and 0.66.
 */
function say(pieces: number, degrees: number, { seconds = 2, track = 0 } = {}): Piece[] {
  return Array<Piece>(pieces).fill([degrees, seconds, track])
}

/** Runs the clustering. Returns one letter per piece: the speakers are named A, B and so on, in order of appearance. */
async function cluster(pieces: readonly Piece[], known: Readonly<Record<string, number>> = {}): Promise<string> {
  const site = join(environment?.directory ?? '', 'site')
  const args = ['-I', '-B', script, code, site, JSON.stringify(pieces), JSON.stringify(known)]
  const { stdout } = await promisify(execFile)(environment?.python.executable ?? '', args, { timeout: 30_000 })
  const labels = JSON.parse(stdout) as number[]
  const order = [...new Set(labels)]
  return labels.map((label) => 'ABCDEF'[order.indexOf(label)]).join('')
}

describe.skipIf(!environment)('the speaker clustering of speech segments', () => {
  test('assigns segments with similar voices to one speaker, and a distant voice to another', async () => {
    expect(await cluster([...say(6, 0), ...say(5, 60, { track: 1 }), ...say(6, 0)])).toBe('A'.repeat(17))
    expect(await cluster([...say(6, 0), ...say(5, 70, { track: 1 }), ...say(6, 0)])).toBe('AAAAAABBBBBAAAAAA')
  })

  test('assigns two different voices in one track to two speakers', async () => {
    expect(await cluster([...say(3, 0), ...say(3, 90)])).toBe('AAABBB')
  })

  test('assigns a short deviating segment to the speaker of its track', async () => {
    const stray = say(1, 50, { seconds: 0.5 })
    expect(await cluster([...say(6, 0), ...stray, ...say(6, 0), ...say(6, 90, { track: 1 })])).toBe(
      `${'A'.repeat(13)}${'B'.repeat(6)}`,
    )
  })

  test('assigns speech of less than three seconds to a new speaker only if the voice is unlike all others', async () => {
    const between = (degrees: number) => [...say(6, 0), ...say(1, degrees, { track: 1 }), ...say(6, 170, { track: 2 })]
    expect(await cluster(between(65))).toBe('AAAAAAABBBBBB')
    expect(await cluster(between(85))).toBe('AAAAAABCCCCCC')
  })

  test('keeps two known speakers separate, however similar their voices', async () => {
    const talk = [...say(6, 0), ...say(6, 51, { track: 1 }), ...say(6, 0)]
    expect(await cluster(talk)).toBe('A'.repeat(18))
    expect(await cluster(talk, { ann: 0, bob: 51 })).toBe('AAAAAABBBBBBAAAAAA')
    expect(await cluster(talk, { ann: 0 })).toBe('A'.repeat(18))
  })

  test('creates a speaker even from one or two segments', async () => {
    expect(await cluster(say(1, 0))).toBe('A')
    expect(await cluster([...say(2, 0), ...say(2, 80, { track: 1 })])).toBe('AABB')
  })
})
