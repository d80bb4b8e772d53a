import { encodeSrt, encodeVtt } from '#shared/protocols/transcript/cues.ts'
import type { Transcript } from './transcript.ts'

export type SubtitleFormat = 'srt' | 'vtt'

// The encoders yield to the event loop with setImmediate during a long transcript. Browsers do not have this function.
globalThis.setImmediate ??= ((callback: () => void) => setTimeout(callback)) as unknown as typeof setImmediate

export async function subtitlesOf({ cues }: Transcript, format: SubtitleFormat): Promise<string> {
  return await (format === 'srt' ? encodeSrt(cues) : encodeVtt(cues))
}
