import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { CallForm } from '#services/console/screens/playground/call/form.tsx'
import { modelsFor, optionsOf } from '#services/console/screens/playground/catalog.ts'
import { PlayButton } from './play-button.tsx'
import { audio } from './state.ts'
import { TranscriptView } from './transcript-view.tsx'
import { Waveform } from './waveform.tsx'

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
    // Without this, the file field shows "no file chosen" for a dropped or recorded file.
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
