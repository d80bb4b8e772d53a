import { signal } from '@preact/signals'

/** What the microphone hears, as a file. */
export class Recorder {
  /** Since when it hears, in unix milliseconds; undefined: it does not. */
  readonly since = signal<number | undefined>(undefined)
  #recorder: MediaRecorder | undefined

  /** Begins. @throws Error with a sentence for whoever asked, where there is no microphone or it is not allowed */
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

  /** Ends, which gives the file. */
  stop(): void {
    if (this.#recorder?.state === 'recording') this.#recorder.stop()
  }
}

async function microphone(): Promise<MediaStream> {
  // Browsers give it to pages from https and from this machine alone.
  if (!navigator.mediaDevices) {
    throw new Error('This page may not use the microphone: open it over https, or at 127.0.0.1. A file can be chosen.')
  }
  return await navigator.mediaDevices.getUserMedia({ audio: true }).catch(() => {
    throw new Error(
      'There is no microphone, or the browser does not allow it here. Allow it in the address bar, or choose a file.',
    )
  })
}
