import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { CallForm } from '#services/console/screens/playground/call/form.tsx'
import { modelsFor, optionsOf } from '#services/console/screens/playground/catalog.ts'
import { download } from './download.ts'
import { PlayButton } from './play-button.tsx'
import { audio } from './state.ts'
import { type SubtitleFormat, subtitlesOf } from './subtitles.ts'
import type { Transcript } from './transcript.ts'
import { colourOf, Waveform } from './waveform.tsx'

/** Transcribes a file or a recording and shows words and speakers on the waveform. */
export function AudioForm() {
  const { run, model, file, values, player, transcript } = audio
  useEffect(() => () => player.stop(), [])
  const canDiarize = modelsFor('diarization').some(({ id }) => id === model.value)
  return (
    <CallForm
      run={run}
      model={{ capability: 'transcription', chosen: model }}
      fields={optionsOf('/v1/audio/transcriptions', ['language', 'prompt', 'temperature'])}
      values={values}
      verb="Transcribe"
      isReady={file.value !== undefined}
      send={(options) => audio.transcribe(canDiarize, options)}
      extra={<PlayButton player={player} />}
      outcome={<Result />}
      hint={canDiarize && <SpeakersChoice />}
      below={
        transcript.value && (
          <TranscriptView
            transcript={transcript.value}
            name={file.value?.name ?? 'audio'}
            onPlay={(at) => player.play(at)}
          />
        )
      }
    >
      <Source />
      <Waveform player={player} transcript={transcript.value} />
    </CallForm>
  )
}

function Result() {
  return (
    <>
      {audio.run.isBusy.value && <p class="dim">Transcribing…</p>}
      {audio.note.value && <p class="dim took">{audio.note.value}</p>}
    </>
  )
}

function SpeakersChoice() {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={audio.wantsSpeakers.value}
        onChange={({ currentTarget }) => {
          audio.wantsSpeakers.value = currentTarget.checked
        }}
      />
      <span>Identify speakers (sends a second request)</span>
    </label>
  )
}

/** Selects the audio: a file that is chosen or dropped, or a recording. */
function Source() {
  const isOver = useSignal(false)
  const field = useRef<HTMLInputElement>(null)
  const file = audio.file.value
  useEffect(() => {
    if (!field.current || !file || field.current.files?.[0] === file) return
    // Sets the file of the file field. Otherwise the field shows "no file chosen" for a dropped or recorded file.
    const data = new DataTransfer()
    data.items.add(file)
    field.current.files = data.files
  }, [file])
  const isRecording = audio.recorder.since.value !== undefined
  const load = (files: FileList | null | undefined) => {
    const [chosen] = files ?? []
    if (chosen) void audio.load(chosen)
  }
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the file field inside is the accessible alternative to dropping.
    <div
      class={`drop ${isOver.value ? 'over' : ''}`}
      onDragOver={(event) => {
        event.preventDefault()
        isOver.value = true
      }}
      onDragLeave={() => {
        isOver.value = false
      }}
      onDrop={(event) => {
        event.preventDefault()
        isOver.value = false
        load(event.dataTransfer?.files)
      }}
    >
      <label>
        <span>Audio file (choose one or drop it here)</span>
        <input
          ref={field}
          type="file"
          accept="audio/*,video/mp4,video/webm,.flac,.mp3,.mp4,.mpeg,.mpga,.m4a,.ogg,.wav,.webm"
          onChange={({ currentTarget }) => load(currentTarget.files)}
        />
      </label>
      <div class="actions">
        <button type="button" aria-pressed={isRecording} onClick={() => void audio.record()}>
          <span class={`dot ${isRecording ? 'on' : ''}`} />
          {isRecording ? 'Stop recording' : 'Record'}
        </button>
        {file && <span class="dim">{file.name}</span>}
      </div>
    </div>
  )
}

interface TranscriptViewProps {
  readonly transcript: Transcript
  readonly name: string
  readonly onPlay: (seconds: number) => void
}

/** A transcript by segment. A timestamp starts playback; subtitles can be downloaded. */
function TranscriptView({ transcript, name, onPlay }: TranscriptViewProps) {
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
