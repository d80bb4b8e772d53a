import { signal, useSignal } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { fetchApi } from '#services/console/api/client.ts'
import { latencyText } from '#services/console/api/clock.ts'
import { download } from '#services/console/parts/parts.tsx'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { modelsFor, optionsOf } from '#services/console/screens/playground/call/catalog.ts'
import { CallForm, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { audio, barsOf, Player } from './state.ts'
import { type SubtitleFormat, subtitlesOf, type Transcript } from './transcript.ts'

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

function Source() {
  const isOver = useSignal(false)
  const field = useRef<HTMLInputElement>(null)
  const file = audio.file.value
  useEffect(() => {
    if (!field.current || !file || field.current.files?.[0] === file) return
    // Without this assignment, the file field would show "no file chosen" for a dropped or recorded file.
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

function PlayButton({ player }: { readonly player: Player }) {
  if (!player.sound.value) return null
  return (
    <button type="button" onClick={() => (player.isPlaying.value ? player.stop() : player.play(restart(player)))}>
      {player.isPlaying.value ? 'Pause' : 'Play'}
    </button>
  )
}

/** Returns the position from which playback starts: the current position, or 0 at the end. */
function restart({ at, sound }: Player): number {
  return sound.value && at.value < sound.value.duration - 0.05 ? at.value : 0
}

/** Width of one second of audio in the waveform, in pixels. Reduced if the whole waveform would exceed WIDTH_MAX. */
const SCALE = 110
const WIDTH_MAX = 24_000
const HEIGHT = 72
const COLOURS = 4

interface WaveformProps {
  readonly player: Player
  readonly transcript: Transcript | undefined
}

function Waveform({ player, transcript }: WaveformProps) {
  const sound = player.sound.value
  const path = useMemo(() => (sound ? pathOf(barsOf(sound)) : ''), [sound])
  if (!sound) return null
  const width = Math.min(WIDTH_MAX, Math.max(280, sound.duration * SCALE))
  const scale = width / sound.duration
  const left = (seconds: number) => `${(seconds * scale).toFixed(1)}px`
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard.
    <section class="wave" tabIndex={0} aria-label="Waveform">
      <div class="wave-inside" style={{ width: `${width}px` }}>
        {transcript?.segments
          .filter(({ speaker }) => speaker)
          .map(({ start, end, speaker }) => (
            <span
              key={start}
              class={`turn-of ${colourOf(transcript, speaker)}`}
              style={{ left: left(start), width: left(end - start) }}
            >
              {speaker}
            </span>
          ))}
        <button
          type="button"
          class="loudness"
          aria-label="Play from the clicked position, or from the start"
          onClick={({ offsetX, detail }) => player.play(detail === 0 ? 0 : Math.max(0, offsetX / scale))}
        >
          <svg viewBox={`0 0 1000 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
            <path d={path} />
          </svg>
        </button>
        <span class="playhead" style={{ left: left(player.at.value) }} />
        {transcript && (
          <div class="words">
            {transcript.words.map(({ word, start, end, speaker }, nth) => (
              <button
                type="button"
                key={`${start}-${nth}`}
                class={`word ${nth % 2 ? 'low' : ''} ${colourOf(transcript, speaker)} ${
                  player.at.value >= start && player.at.value < end && player.isPlaying.value ? 'now' : ''
                }`}
                style={{ left: left(start) }}
                title={`${start.toFixed(2)} s to ${end.toFixed(2)} s`}
                onClick={() => player.play(start)}
              >
                {word}
              </button>
            ))}
          </div>
        )}
      </div>
    </section>
  )
}

function colourOf({ speakers }: Transcript, speaker: string): string {
  return speaker ? `voice-${speakers.indexOf(speaker) % COLOURS}` : ''
}

function pathOf(bars: readonly number[]): string {
  const step = 1_000 / bars.length
  return bars
    .map((value, nth) => {
      const half = Math.max(0.6, (value * (HEIGHT - 4)) / 2)
      return `M${(nth * step).toFixed(2)} ${(HEIGHT / 2 - half).toFixed(1)}h${(step * 0.7).toFixed(2)}v${(half * 2).toFixed(1)}h-${(step * 0.7).toFixed(2)}z`
    })
    .join('')
}

const PATH = '/v1/audio/speech'
/** The OpenAI SDK requires a voice, and most servers accept this voice. */
const VOICE = 'alloy'

const run = new Run()
const player = new Player()
const model = signal('')
const text = signal('It was the best of times, it was the worst of times.')
const values = signal<Readonly<Record<string, string>>>({ voice: VOICE })
const generated = signal<{ readonly file: string; readonly audio: Blob; readonly note: string } | undefined>(undefined)

export function SpeechForm() {
  useEffect(() => () => player.stop(), [])
  return (
    <CallForm
      run={run}
      model={{ capability: 'speech', chosen: model }}
      fields={optionsOf(PATH, ['voice', 'speed', 'response_format', 'instructions'])}
      values={values}
      verb="Generate"
      isReady={text.value !== ''}
      send={generate}
      extra={generated.value && <PlayButton player={player} />}
      outcome={<GeneratedAudio />}
    >
      <TextField label="Text" text={text} rows={6} />
    </CallForm>
  )
}

function GeneratedAudio() {
  if (!generated.value) return run.isBusy.value ? <p class="dim">Generating audio…</p> : null
  const { file, audio, note } = generated.value
  return (
    <>
      <Waveform player={player} transcript={undefined} />
      <p class="actions">
        <button type="button" class="small" onClick={() => download(file, audio)}>
          Download {file}
        </button>
        <span class="dim took">{note}</span>
      </p>
    </>
  )
}

async function generate(options: Readonly<Record<string, unknown>>): Promise<void> {
  const into = `speech.${options.response_format ?? 'mp3'}`
  const body = { model: model.value, input: text.value, ...options }
  const call: Call = { name: 'speech', path: PATH, method: 'audio.speech', body, into }
  const startedAt = performance.now()
  generated.value = undefined
  player.stop()
  await run.start([call], async (abort) => {
    const audio = await (await fetchApi(PATH, { method: 'POST', body, signal: abort })).blob()
    const seconds = latencyText((performance.now() - startedAt) / 1_000)
    const isDrawn = await player.load(audio)
    // If the request was stopped or replaced while the audio was decoded, then the audio is dropped.
    if (abort.aborted) return
    const lasts = isDrawn
      ? `${(player.sound.value?.duration ?? 0).toFixed(1)} s of audio`
      : `${audio.size.toLocaleString('en')} bytes (not playable in this browser)`
    generated.value = { file: into, audio, note: `${lasts} in ${seconds}` }
  })
}
