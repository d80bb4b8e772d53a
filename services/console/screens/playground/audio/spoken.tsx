import { download } from './download.ts'
import { type SubtitleFormat, subtitlesOf } from './subtitles.ts'
import type { Transcript } from './transcript.ts'
import { colourOf } from './waveform.tsx'

interface SpokenProps {
  readonly of: Transcript
  /** File name of the recording. */
  readonly name: string
  readonly onPlay: (seconds: number) => void
}

/** A transcript by segment. A timestamp starts playback; subtitles can be downloaded. */
export function Spoken({ of, name, onPlay }: SpokenProps) {
  const stem = name.replace(/\.\w+$/, '')
  const save = async (format: SubtitleFormat) => download(`${stem}.${format}`, await subtitlesOf(of, format))
  return (
    <div class="card spoken">
      <div class="title">
        <h2>Transcript</h2>
        <button type="button" class="small" onClick={() => void save('srt')}>
          Download .srt
        </button>
        <button type="button" class="small" onClick={() => void save('vtt')}>
          Download .vtt
        </button>
      </div>
      {of.segments.length === 0 && <p class="dim">No speech detected in this recording.</p>}
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
