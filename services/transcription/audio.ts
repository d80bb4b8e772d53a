import { Readable } from 'node:stream'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { AudioFile } from '#shared/engines/transcription.ts'
import { ServiceError } from '#shared/error.ts'

/** The audio of a request: its blob, read piece by piece each time it is asked for, or what the request itself holds. */
export function audioOf({ audio }: TranscribeRequest, blobs: Blobs): AudioFile {
  const { blob, base64, bytes, format } = audio
  const filename = `audio.${format}`
  if (blob === undefined) return { ...inMemory(base64 ?? ''), filename }
  return {
    filename,
    bytes,
    open: () =>
      blobs.open(blob).catch((cause: unknown) => {
        // Not caused by the caller: the blob directory is not shared by the processes, or was emptied.
        throw new ServiceError('internal_error', 'The audio of the request could not be read by its worker.', { cause })
      }),
  }
}

export function sampleOf({ reference }: TranscribeRequest['speakers'][number]): AudioFile {
  return { ...inMemory(reference), filename: 'sample' }
}

function inMemory(base64: string): Omit<AudioFile, 'filename'> {
  const content = Buffer.from(base64, 'base64')
  return { bytes: content.length, open: () => Promise.resolve(Readable.from([content])) }
}
