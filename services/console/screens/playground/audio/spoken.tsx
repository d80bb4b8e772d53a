import { encodeSrt, encodeVtt } from '#shared/protocols/transcript/cues.ts'
import { download } from './download.ts'
import type { Transcript } from './transcript.ts'
import { colourOf } from './waveform.tsx'

interface SpokenProps {
  readonly of: Transcript
  /** Name of the recording. */
  readonly name: string
  readonly onPlay: (seconds: number) => void
}

/** A transcript with its times; each plays from there. Subtitles to take away. */
export function Spoken({ of, name, onPlay }: SpokenProps) {
  const stem = name.replace(/\.\w+$/, '')
  return (
    <div class="card spoken">
      <div class="title">
        <h2>Transcript</h2>
        <button type="button" class="small" onClick={() => download(`${stem}.srt`, encodeSrt(of.cues))}>
          Download .srt
        </button>
        <button type="button" class="small" onClick={() => download(`${stem}.vtt`, encodeVtt(of.cues))}>
          Download .vtt
        </button>
      </div>
      {of.segments.length === 0 && <p class="dim">Nobody speaks in this recording.</p>}
      <ol>
        {of.segments.map(({ start, end, text, speaker }) => (
          <li key={`${start}-${end}`}>
            <button type="button" class="time" aria-label={`Play from ${stamp(start)}`} onClick={() => onPlay(start)}>
              {stamp(start)}
            </button>
            {speaker && <span class={`speaker ${colourOf(of, speaker)}`}>{speaker}</span>}
            <span>{text}</span>
          </li>
        ))}
      </ol>
    </div>
  )
}

function stamp(seconds: number): string {
  const tenths = Math.floor(seconds * 10)
  const minutes = Math.floor(tenths / 600)
  return `${minutes}:${((tenths % 600) / 10).toFixed(1).padStart(4, '0')}`
}
