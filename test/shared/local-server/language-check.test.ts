import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { findEnvironment } from '../../support/speech/running.ts'

const environment = await findEnvironment()
const code = fileURLToPath(new URL('../../../shared/local-server/python', import.meta.url))
const script = fileURLToPath(new URL('../../support/speech/language.py', import.meta.url))

/** Result of the model for a window of 30 seconds. */
type Window = readonly [avgLogprob: number, temperature: number, noSpeechProb: number, seconds: number]

async function check(windows: readonly Window[], detected: string | null = null): Promise<string> {
  const site = join(environment?.directory ?? '', 'site')
  const args = ['-I', '-B', script, code, site, JSON.stringify(windows), JSON.stringify(detected)]
  const { stdout } = await promisify(execFile)(environment?.python.executable ?? '', args, { timeout: 30_000 })
  return stdout.trim()
}

// Figures of recordings: docs/guides/transcription.md, Languages.
const ENGLISH: Window = [-0.52, 0, 0.02, 20]
const NOISY_ENGLISH: Window = [-0.63, 0.2, 0.1, 20]
const FRENCH: Window = [-0.75, 0.2, 0.02, 20]
const SPELLED_SPANISH: Window = [-0.63, 0, 0.79, 20]
const SHORT: Window = [-1.2, 1, 0.1, 1.5]
const RUSSIAN: Window = [-0.96, 0, 0.02, 20]

describe.skipIf(!environment)('speech for a model that supports English only', () => {
  test('is accepted as English if the model is sure of one window', async () => {
    expect(await check([ENGLISH])).toBe('sure')
    expect(await check([NOISY_ENGLISH])).toBe('sure')
    expect(await check([RUSSIAN, ENGLISH])).toBe('sure')
  })

  test('is another language if the model is unsure of all', async () => {
    expect(await check([FRENCH])).toBe('""')
    expect(await check([RUSSIAN, FRENCH, RUSSIAN, ENGLISH])).toBe('""')
    expect(await check([[-0.92, 0, 0.55, 20]])).toBe('""')
  })

  test('is the language that a multilingual model detects, if there is one', async () => {
    expect(await check([FRENCH], 'fr')).toBe('"fr"')
    expect(await check([SPELLED_SPANISH], 'es')).toBe('"es"')
    expect(await check([FRENCH], 'en')).toBe('sure')
    expect(await check([SHORT], 'fr')).toBe('sure')
  })

  test('is not refused for noise, and not for a word or two', async () => {
    expect(await check([[-1.2, 1, 0.8, 20]])).toBe('sure')
    expect(await check([SHORT])).toBe('sure')
    expect(await check([])).toBe('sure')
  })
})
