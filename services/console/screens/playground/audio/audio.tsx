import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { Code } from '#services/console/screens/playground/call/code.tsx'
import { ModelChoice } from '#services/console/screens/playground/call/models.tsx'
import { Options } from '#services/console/screens/playground/call/options.tsx'
import { ProblemOf } from '#services/console/screens/playground/call/problem.tsx'
import { fieldsOf, filledIn } from '#services/console/screens/playground/call/schema.ts'
import { Send } from '#services/console/screens/playground/call/send.tsx'
import { modelFor, modelsFor, served } from '#services/console/screens/playground/served.ts'
import { Spoken } from './spoken.tsx'
import { audio } from './state.ts'
import { Waveform } from './waveform.tsx'

/** Speech by file or microphone, with its words and speakers on the waveform. */
export function AudioForm() {
  const { run, model, file, values, player, transcript } = audio
  useEffect(() => {
    model.value = modelFor('transcription', model.value)
    return () => player.stop()
  }, [])
  const canTell = modelsFor('diarization').some(({ id }) => id === model.value)
  const names = ['language', 'prompt', 'temperature']
  const fields = served.value ? fieldsOf(served.value.reference, '/v1/audio/transcriptions', names) : []
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void audio.transcribe(canTell, filledIn(fields, values.value))
          }}
        >
          <Source />
          <Waveform player={player} transcript={transcript.value} />
          <div class="actions">
            <Send run={run} label="Transcribe" isReady={file.value !== undefined && model.value !== ''} />
            {player.sound.value && <PlayButton />}
          </div>
          {run.isBusy.value && <p class="dim">It listens…</p>}
          <ProblemOf run={run} />
          {audio.note.value && <p class="dim took">{audio.note.value}</p>}
        </form>
        <Options fields={fields} values={values}>
          <ModelChoice capability="transcription" model={model} />
          {canTell && (
            <label class="check">
              <input
                type="checkbox"
                checked={audio.wantsSpeakers.value}
                onChange={({ currentTarget }) => {
                  audio.wantsSpeakers.value = currentTarget.checked
                }}
              />
              <span>Tell speakers apart (a second call)</span>
            </label>
          )}
        </Options>
      </div>
      {transcript.value && (
        <Spoken of={transcript.value} name={file.value?.name ?? 'audio'} onPlay={(at) => player.play(at)} />
      )}
      <Code calls={run.calls.value} />
    </>
  )
}

/** Where sound comes from: a file that is chosen or dropped, or the microphone. */
function Source() {
  const isOver = useSignal(false)
  const isRecording = audio.recorder.since.value !== undefined
  const take = (files: FileList | null | undefined) => {
    const [file] = files ?? []
    if (file) void audio.take(file)
  }
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: whoever cannot drop a file chooses it by the field inside.
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
        take(event.dataTransfer?.files)
      }}
    >
      <label>
        <span>Audio file: choose it, or drop it here</span>
        <input
          type="file"
          accept="audio/*,video/mp4,video/webm,.flac,.mp3,.mp4,.mpeg,.mpga,.m4a,.ogg,.wav,.webm"
          onChange={({ currentTarget }) => take(currentTarget.files)}
        />
      </label>
      <div class="actions">
        <button type="button" aria-pressed={isRecording} onClick={() => void audio.record()}>
          <span class={`dot ${isRecording ? 'on' : ''}`} />
          {isRecording ? 'End the recording' : 'Record'}
        </button>
        {audio.file.value && <span class="dim">{audio.file.value.name}</span>}
      </div>
    </div>
  )
}

function PlayButton() {
  const { player } = audio
  return (
    <button type="button" onClick={() => (player.isPlaying.value ? player.stop() : player.play(restart()))}>
      {player.isPlaying.value ? 'Pause' : 'Play'}
    </button>
  )
}

/** Where playing goes on: at the beginning, once the end was heard. */
function restart(): number {
  const { at, sound } = audio.player
  return sound.value && at.value < sound.value.duration - 0.05 ? at.value : 0
}
