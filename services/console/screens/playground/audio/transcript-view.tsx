import { download } from './download.ts'
import { type SubtitleFormat, subtitlesOf } from './subtitles.ts'
import type { Transcript } from './transcript.ts'
import { colourOf } from './waveform.tsx'

interface TranscriptViewProps {
  readonly transcript: Transcript
  readonly name: string
  readonly onPlay: (seconds: number) => void
}

/** A transcript by segment. A timestamp starts playback; subtitles can be downloaded. */
export function TranscriptView({ transcript, name, onPlay }: TranscriptViewProps) {
  const stem = name.replace(/\.\w+$/, '')
  const save = async (format: SubtitleFormat) => download(`${stem}.${format}`, await subtitlesOf(transcript, format))
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
      {transcript.segments.length === 0 && <p class="dim">No speech detected in this recording.</p>}
      <ol>
        {transcript.segments.map(({ start, end, text, speaker }) => (
          <li key={`${start}-${end}`}>
            <button
              type="button"
              class="time"
              aria-label={`Play from ${timestamp(start)}`}
              onClick={() => onPlay(start)}
            >
              {timestamp(start)}
            </button>
            {speaker && <span class={`speaker ${colourOf(transcript, speaker)}`}>{speaker}</span>}
            <span>{text}</span>
          </li>
        ))}
      </ol>
    </div>
  )
}

function timestamp(seconds: number): string {
  const tenths = Math.floor(seconds * 10)
  const minutes = Math.floor(tenths / 600)
  return `${minutes}:${((tenths % 600) / 10).toFixed(1).padStart(4, '0')}`
}
