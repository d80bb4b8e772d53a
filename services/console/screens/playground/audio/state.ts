import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { type Diarized, type Transcript, transcriptOf, type Verbose } from './transcript.ts'

const BARS_MAX = 2_400
const BARS_PER_SECOND = 40

export class Player {
  readonly at = signal(0)
  readonly isPlaying = signal(false)
  /** Decoded audio. Undefined if no file is loaded, or if this browser cannot decode the file. */
  readonly sound = signal<AudioBuffer | undefined>(undefined)
  #context: AudioContext | undefined
  #source: AudioBufferSourceNode | undefined
  #startedAt = 0
  #frame = 0

  async load(file: Blob): Promise<boolean> {
    this.stop()
    this.at.value = 0
    this.sound.value = undefined
    this.#context ??= new AudioContext()
    const bytes = await file.arrayBuffer()
    this.sound.value = await this.#context.decodeAudioData(bytes).catch(() => undefined)
    return this.sound.value !== undefined
  }

  play(from: number): void {
    const [context, sound] = [this.#context, this.sound.value]
    if (!context || !sound) return
    this.stop()
    void context.resume()
    const source = context.createBufferSource()
    source.buffer = sound
    source.connect(context.destination)
    source.start(0, from)
    source.onended = () => this.#source === source && this.stop()
    this.#source = source
    this.#startedAt = context.currentTime - from
    this.isPlaying.value = true
    this.at.value = from
    this.#follow(context, sound.duration)
  }

  stop(): void {
    cancelAnimationFrame(this.#frame)
    const source = this.#source
    this.#source = undefined
    source?.stop()
    this.isPlaying.value = false
  }

  #follow(context: AudioContext, duration: number): void {
    this.#frame = requestAnimationFrame(() => {
      this.at.value = Math.min(duration, context.currentTime - this.#startedAt)
      this.#follow(context, duration)
    })
  }
}

/** Returns the bars of a waveform: peaks of equal parts of the audio, scaled to 0 to 1. */
export function barsOf(sound: AudioBuffer): readonly number[] {
  const samples = sound.getChannelData(0)
  const count = Math.max(1, Math.min(BARS_MAX, Math.round(sound.duration * BARS_PER_SECOND)))
  const length = samples.length / count
  const loudest = Array.from({ length: count }, (_, nth) => {
    let most = 0
    const end = Math.floor((nth + 1) * length)
    for (let at = Math.floor(nth * length); at < end; at++) most = Math.max(most, Math.abs(samples[at] ?? 0))
    return most
  })
  const top = Math.max(0.01, ...loudest)
  return loudest.map((value) => value / top)
}

const PATH = '/v1/audio/transcriptions'

class Audio {
  readonly run = new Run()
  readonly player = new Player()
  readonly recorder = new Recorder()
  readonly model = signal('')
  readonly file = signal<File | undefined>(undefined)
  readonly wantsSpeakers = signal(true)
  readonly values = signal<Readonly<Record<string, string>>>({})
  readonly transcript = signal<Transcript | undefined>(undefined)
  readonly note = signal('')

  async load(file: File): Promise<void> {
    this.run.stop()
    this.run.problem.value = undefined
    this.transcript.value = undefined
    this.file.value = file
    const isDrawn = await this.player.load(file)
    this.note.value = isDrawn
      ? ''
      : 'This browser cannot play the file, but the service may be able to transcribe the file.'
  }

  async record(): Promise<void> {
    if (this.recorder.since.value !== undefined) return this.recorder.stop()
    await this.recorder
      .start((file) => void this.load(file))
      .catch((error: Error) => {
        this.run.problem.value = { message: error.message, fix: '' }
      })
  }

  /**
   * Transcribes the file with the time of each word. If speakers are requested, then the file is sent a second time, because no response
   * format has both words and speakers.
   *
   * @param canDiarize Whether the model identifies speakers
   */
  async transcribe(canDiarize: boolean, options: Readonly<Record<string, unknown>>): Promise<void> {
    const file = this.file.value
    if (!file) return
    const callOf = (name: string, form: object): Call => ({
      ...{ name, path: PATH, method: 'audio.transcriptions', file: file.name },
      body: { model: this.model.value, ...options, ...form },
    })
    const granularities = { timestamp_granularities: ['word', 'segment'] }
    const words = callOf('words', { response_format: 'verbose_json', ...granularities })
    const speakers = callOf('speakers', { response_format: 'diarized_json' })
    const hasSpeakers = canDiarize && this.wantsSpeakers.value
    this.transcript.value = undefined
    const startedAt = performance.now()
    await this.run.start(hasSpeakers ? [words, speakers] : [words], async (abort) => {
      const [verbose, diarized] = await Promise.all([
        upload<Verbose>(words, file, abort),
        hasSpeakers ? upload<Diarized>(speakers, file, abort) : undefined,
      ])
      this.transcript.value = transcriptOf(verbose, diarized)
      const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1)
      this.note.value = `${verbose.duration.toFixed(1)} s of audio in ${seconds} s`
    })
  }
}

async function upload<T>({ path, body }: Call, file: File, signal: AbortSignal): Promise<T> {
  const form = new FormData()
  form.set('file', file)
  for (const [name, value] of Object.entries(body)) {
    if (Array.isArray(value)) for (const one of value) form.append(`${name}[]`, String(one))
    else form.set(name, String(value))
  }
  return await fetchJson<T>(path, { method: 'POST', body: form, signal })
}

class Recorder {
  /** Start of the recording in Unix milliseconds. Undefined if not recording. */
  readonly since = signal<number | undefined>(undefined)
  #recorder: MediaRecorder | undefined

  /** Starts a recording. @throws Error with a text for the user if there is no microphone or access is denied */
  async start(onRecorded: (file: File) => void): Promise<void> {
    const stream = await microphone()
    const pieces: Blob[] = []
    const recorder = new MediaRecorder(stream)
    recorder.ondataavailable = ({ data }) => void pieces.push(data)
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop()
      this.since.value = undefined
      const type = recorder.mimeType
      const extension = type.includes('mp4') ? 'mp4' : type.includes('ogg') ? 'ogg' : 'webm'
      onRecorded(new File(pieces, `recording.${extension}`, { type }))
    }
    this.#recorder = recorder
    recorder.start()
    this.since.value = Date.now()
  }

  stop(): void {
    if (this.#recorder?.state === 'recording') this.#recorder.stop()
  }
}

async function microphone(): Promise<MediaStream> {
  // Browsers have this API on HTTPS and localhost pages only.
  if (!navigator.mediaDevices) {
    throw new Error('The microphone requires HTTPS or localhost. Open the console over HTTPS, or choose a file.')
  }
  return await navigator.mediaDevices.getUserMedia({ audio: true }).catch(() => {
    throw new Error('No microphone found, or access was denied. Allow access in the address bar, or choose a file.')
  })
}

/** Created after the classes above, because the constructor of Audio creates instances of these classes. */
export const audio = new Audio()
