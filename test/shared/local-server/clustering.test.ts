import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { findEnvironment } from '../../support/speech/running.ts'

const environment = await findEnvironment()
const code = fileURLToPath(new URL('../../../shared/local-server/python', import.meta.url))
const script = fileURLToPath(new URL('../../support/speech/cluster.py', import.meta.url))

/** So many windows in a row of one voice, as degrees on a circle: 49° and 52° are distances of 0.344 and 0.384. */
function say(windows: number, degrees: number): number[] {
  return Array<number>(windows).fill(degrees)
}

/** Letters of who speaks, window by window, in order of appearance. */
async function cluster(degrees: readonly number[], known: Readonly<Record<string, number>> = {}): Promise<string> {
  const site = join(environment?.directory ?? '', 'site')
  const args = ['-I', '-B', script, code, site, JSON.stringify(degrees), JSON.stringify(known)]
  const { stdout } = await promisify(execFile)(environment?.python.executable ?? '', args, { timeout: 30_000 })
  const labels = JSON.parse(stdout) as number[]
  const order = [...new Set(labels)]
  return labels.map((label) => 'ABCDEF'[order.indexOf(label)]).join('')
}

describe.skipIf(!environment)('windows of speech', () => {
  test('of one voice are one speaker, and of a voice further away another', async () => {
    expect(await cluster([...say(6, 0), ...say(5, 49), ...say(6, 0)])).toBe('A'.repeat(17))
    expect(await cluster([...say(6, 0), ...say(5, 60), ...say(6, 0)])).toBe('AAAAAABBBBBAAAAAA')
  })

  test('across a change are no speaker of their own, however many there are', async () => {
    const change = [52, 55, 58]
    const talk = [...say(5, 0), ...change, ...say(5, 110), ...change, ...say(5, 0), ...change, ...say(5, 110)]
    expect(await cluster(talk)).toMatch(/^A{5,8}B{5,11}A{5,11}B{5,8}$/)
  })

  test('that stray for a moment stay with the speaker', async () => {
    expect(await cluster([...say(6, 0), ...say(6, 60), 28, ...say(6, 60)])).toBe(`${'A'.repeat(6)}${'B'.repeat(13)}`)
  })

  test('of two known people are never joined, however alike', async () => {
    const talk = [...say(6, 0), ...say(6, 51), ...say(6, 0)]
    expect(await cluster(talk)).toBe('A'.repeat(18))
    expect(await cluster(talk, { ann: 0, bob: 51 })).toBe('AAAAAABBBBBBAAAAAA')
    expect(await cluster(talk, { ann: 0 })).toBe('A'.repeat(18))
  })

  test('that are few are speakers as well', async () => {
    expect(await cluster(say(1, 0))).toBe('A')
    expect(await cluster([0, 0, 60, 60])).toBe('AABB')
  })
})
