import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { findEnvironment } from '../../support/speech/running.ts'

const environment = await findEnvironment()
const code = fileURLToPath(new URL('../../../shared/local-server/python', import.meta.url))
const script = fileURLToPath(new URL('../../support/speech/language.py', import.meta.url))

/**
 * A window of up to 30 seconds of audio. The model returns the average log probability of the tokens, the sampling temperature and the
 * probability that the window has no speech. The last number is the duration of the audio in seconds.
 */
type Window = readonly [avgLogprob: number, temperature: number, noSpeechProb: number, seconds: number]

async function check(windows: readonly Window[], detected: string | null = null): Promise<string> {
  const site = join(environment?.directory ?? '', 'site')
  const args = ['-I', '-B', script, code, site, JSON.stringify(windows), JSON.stringify(detected)]
  const { stdout } = await promisify(execFile)(environment?.python.executable ?? '', args, { timeout: 30_000 })
  return stdout.trim()
}

// Windows with values that were measured on recordings (docs/guides/transcription.md, Languages).
const ENGLISH: Window = [-0.52, 0, 0.02, 20]
const NOISY_ENGLISH: Window = [-0.63, 0.2, 0.1, 20]
const FRENCH: Window = [-0.75, 0.2, 0.02, 20]
const SPELLED_SPANISH: Window = [-0.63, 0, 0.79, 20]
const SHORT: Window = [-1.2, 1, 0.1, 1.5]
const RUSSIAN: Window = [-0.96, 0, 0.02, 20]

describe.skipIf(!environment)('the language check of a speech model that supports English only', () => {
  test('accepts speech if the model is confident for at least one window', async () => {
    expect(await check([ENGLISH])).toBe('sure')
    expect(await check([NOISY_ENGLISH])).toBe('sure')
    expect(await check([RUSSIAN, ENGLISH])).toBe('sure')
  })

  test('reports an unknown language if the model is not confident for any window', async () => {
    expect(await check([FRENCH])).toBe('""')
    expect(await check([RUSSIAN, FRENCH, RUSSIAN, ENGLISH])).toBe('""')
    expect(await check([[-0.92, 0, 0.55, 20]])).toBe('""')
  })

  test('reports the language that a multilingual model detects', async () => {
    expect(await check([FRENCH], 'fr')).toBe('"fr"')
    expect(await check([SPELLED_SPANISH], 'es')).toBe('"es"')
    expect(await check([FRENCH], 'en')).toBe('sure')
    expect(await check([SHORT], 'fr')).toBe('sure')
  })

  test('accepts noise, one or two words, and silence', async () => {
    expect(await check([[-1.2, 1, 0.8, 20]])).toBe('sure')
    expect(await check([SHORT])).toBe('sure')
    expect(await check([])).toBe('sure')
  })
})
