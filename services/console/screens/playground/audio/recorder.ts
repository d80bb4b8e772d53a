import { signal } from '@preact/signals'

export class Recorder {
  /** Start of the recording in unix milliseconds; undefined: not recording. */
  readonly since = signal<number | undefined>(undefined)
  #recorder: MediaRecorder | undefined

  /** @throws Error with a text for the user if there is no microphone or access is denied */
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
