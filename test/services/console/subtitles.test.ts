import { afterAll, expect, it, vi } from 'vitest'

afterAll(() => void vi.unstubAllGlobals())

it('the subtitle encoder converts a long transcript in a browser, which lacks setImmediate', async () => {
  vi.stubGlobal('setImmediate', undefined)
  const { subtitlesOf } = await import('#services/console/screens/playground/audio/transcript.ts')
  const cues = Array.from({ length: 20_000 }, (_, nth) => ({ id: nth, start: nth, end: nth + 1, text: `Line ${nth}.` }))
  const transcript = { text: '', duration: 20_000, segments: [], words: [], cues, speakers: [] } as never
  expect(await subtitlesOf(transcript, 'srt')).toContain('Line 19999.')
})
