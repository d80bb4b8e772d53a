/**
 * Blobs as objects of an S3 bucket, so that processes need no shared directory.
 *
 * A small value is written with one request. A stream is sent as a multipart upload, which holds one part in memory and is aborted if the
 * stream fails. If a read breaks off, then it continues at the next missing byte, and only in the same version of the object.
 *
 * Failed requests are retried for some seconds. After that, callers receive `overloaded`, marked as an infrastructure error. Such an error
 * uses no attempt of a job, so an outage of S3 fails no accepted job.
 *
 * Credentials come from the standard chain of the AWS SDK: environment, shared files, web identity, container and instance roles.
 */
import { randomBytes } from 'node:crypto'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type Blobs, type OldBlob, requireKey } from './blobs.ts'

export interface S3Location {
  readonly bucket: string
  /** Prefix of all keys in the bucket. Empty, or ends with a slash. */
  readonly prefix: string
  /** URL of an S3 server other than AWS. Objects have URLs of the form `endpoint/bucket/key`. */
  readonly endpoint: string | undefined
  readonly region: string | undefined
  readonly encryption: 'AES256' | 'aws:kms' | undefined
  readonly kmsKey: string | undefined
}

/**
 * Bytes of one part of a multipart upload. S3 requires at least 5 MiB, except for the last part. With the maximum of 10,000 parts, a blob
 * may have 78 GiB.
 */
const PART_BYTES = 8 * 1024 * 1024
/**
 * Maximum number of tries of a request. The pauses between them are about four seconds in total. This time covers a restart of a small server, and
 * the pauses that S3 requests with `SlowDown`.
 */
const ATTEMPTS_MAX = 6
const RETRY: Backoff = { baseMs: 200, maxMs: 2_000 }
const CONNECT_TIMEOUT_MS = 3_000
/** Maximum time in ms without a byte on a connection. After this time, the request fails and is retried. */
const SILENCE_MS_MAX = 10_000
/** Maximum connections for writes and for reads of small values, which are read completely. */
const CONNECTIONS_MAX = 64
/** Maximum blobs that are read as streams at the same time. Streams have separate connections, so that slow readers do not delay other requests. */
const STREAMS_MAX = 512
/** Maximum consecutive attempts to continue a broken read without receiving a byte. After that, the read fails. */
const RESUMES_MAX = 3
const RESUME_DELAY_MS = 200
const RETRY_AFTER_MS = 5_000
const SWEEP_MAX = 256
const ID_NAME = '.store-id'
const ID = /^[0-9a-f]{32}$/

/**
 * @throws ServiceError `overloaded` if the bucket cannot be used. The cause of the error has a `remediation`, and `isPermanent` is true for wrong
 * settings
 */
export async function openS3Blobs(location: S3Location): Promise<Blobs> {
  const blobs = new S3Blobs(location)
  await blobs.identity()
  return blobs
}

type Send = S3Client['send']

class S3Blobs implements Blobs {
  readonly #send: Send
  readonly #sendStream: Send
  readonly #location: S3Location
  #identity: string | undefined

  constructor(location: S3Location) {
    this.#location = location
    this.#send = retrying(openClient(location, CONNECTIONS_MAX))
    this.#sendStream = retrying(openClient(location, STREAMS_MAX))
  }

  async put(key: string, value: Buffer | AsyncIterable<Buffer>): Promise<void> {
    const at = this.#at(key)
    if (Buffer.isBuffer(value)) await this.#putWhole(at, value)
    else await this.#putStream(at, value)
  }

  async copy(from: string, to: string): Promise<void> {
    const { Bucket, Key } = this.#at(from)
    const CopySource = `${Bucket}/${encodeURIComponent(Key)}`
    await this.#send(new CopyObjectCommand({ ...this.#at(to), ...this.#encryption, CopySource }))
  }

  async open(key: string, range?: { readonly start: number; readonly end: number }): Promise<Readable> {
    if (range && range.end <= range.start) return Readable.from([])
    return await this.#open({ key, send: this.#sendStream, end: range?.end, at: range?.start ?? 0 })
  }

  async #open(read: Reading): Promise<Readable> {
    await this.#continue(read)
    // If the reader destroys the stream before reading any piece, then the generator never starts and cannot clean up.
    // The HTTP response is therefore destroyed here.
    return Readable.from(this.#pieces(read), { objectMode: false }).once('close', () => read.body?.destroy())
  }

  async size(key: string): Promise<number> {
    return (await this.#send(new HeadObjectCommand(this.#at(key)))).ContentLength ?? 0
  }

  async get(key: string): Promise<Buffer> {
    return await buffer(await this.#open({ key, send: this.#send, end: undefined, at: 0 }))
  }

  async delete(key: string): Promise<void> {
    await this.#send(new DeleteObjectCommand(this.#at(key)))
  }

  async sweep(ageMs: number, choose = async (old: readonly OldBlob[]) => old.map(({ key }) => key)): Promise<number> {
    let count = await this.#abortUploads(ageMs)
    for await (const old of this.#olderThan(ageMs)) {
      const keys = await choose(old)
      if (keys.length === 0) continue
      const { bucket: Bucket, prefix } = this.#location
      const Objects = keys.map((key) => ({ Key: prefix + requireKey(key) }))
      const { Errors = [] } = await this.#send(new DeleteObjectsCommand({ Bucket, Delete: { Objects, Quiet: true } }))
      count += keys.length - Errors.length
    }
    return count
  }

  /**
   * Reads the id of the bucket. If there is none, then one is written. If two processes write at the same time, then only the first write succeeds,
   * and both use its id.
   */
  async identity(): Promise<string> {
    if (this.#identity !== undefined) return this.#identity
    const { bucket: Bucket, prefix } = this.#location
    const at = { Bucket, Key: prefix + ID_NAME }
    const read = async () => {
      const { Body } = await this.#send(new GetObjectCommand(at))
      const text = await Body?.transformToString()
      return text && ID.test(text) ? text : undefined
    }
    const found = await read().catch(passMissing)
    if (found === undefined) {
      const body = { Body: randomBytes(16).toString('hex'), IfNoneMatch: '*' }
      await this.#send(new PutObjectCommand({ ...at, ...this.#encryption, ...body })).catch(passExisting)
    }
    const id = found ?? (await read())
    if (id === undefined) throw new Error(`the object ${at.Key} in the bucket ${Bucket} is not an id of a blob store`)
    this.#identity = id
    return id
  }

  async #putWhole(at: Address, value: Buffer): Promise<void> {
    await this.#send(new PutObjectCommand({ ...at, ...this.#encryption, Body: value, ContentLength: value.length }))
  }

  async #putStream(at: Address, value: AsyncIterable<Buffer>): Promise<void> {
    const parts = partsOf(value)
    try {
      const { value: first = Buffer.alloc(0) } = await parts.next()
      if (first.length < PART_BYTES) await this.#putWhole(at, first)
      else await this.#putParts(at, first, parts)
    } finally {
      await parts.return(undefined)
    }
  }

  async #putParts(at: Address, first: Buffer, parts: AsyncGenerator<Buffer, undefined>): Promise<void> {
    const { UploadId } = await this.#send(new CreateMultipartUploadCommand({ ...at, ...this.#encryption }))
    const upload = { ...at, UploadId }
    try {
      const sent: CompletedPart[] = []
      let bytes = 0
      for (let part: Buffer | undefined = first; part; part = (await parts.next()).value) {
        bytes += part.length
        const PartNumber = sent.length + 1
        const { ETag } = await this.#send(new UploadPartCommand({ ...upload, PartNumber, Body: part }))
        sent.push({ ETag, PartNumber })
      }
      const complete = new CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts: sent } })
      await this.#send(complete).catch((error: unknown) => this.#passCompleted(at, bytes, error))
    } catch (error) {
      // If the abort fails as well, then a later sweep aborts the upload.
      await this.#send(new AbortMultipartUploadCommand(upload)).catch(() => {})
      throw error
    }
  }

  /**
   * Ignores the error `NoSuchUpload` if the object has all bytes. The error then means that an earlier try completed the upload, but its response was
   * lost.
   */
  async #passCompleted(at: Address, bytes: number, error: unknown): Promise<void> {
    const { cause } = error as { readonly cause?: { readonly name?: string } }
    if (cause?.name !== 'NoSuchUpload') throw error
    const { ContentLength } = await this.#send(new HeadObjectCommand(at)).catch(() => {
      throw error
    })
    if (ContentLength !== bytes) throw error
  }

  /**
   * Requests the bytes from `read.at` on. If the object was replaced since the first response, then the request fails, so that two versions are never
   * mixed.
   */
  async #continue(read: Reading): Promise<void> {
    const { key, at, end, version } = read
    const Range = at > 0 || end !== undefined ? `bytes=${at}-${end === undefined ? '' : end - 1}` : undefined
    try {
      const answer = await read.send(new GetObjectCommand({ ...this.#at(key), Range, IfMatch: version }))
      read.version = answer.ETag
      read.until = at + (answer.ContentLength ?? 0)
      // If the body fails between two reads, then this event has no other listener and would end the process. The next read receives the error.
      read.body = (answer.Body as Readable).on('error', () => {})
    } catch (error) {
      // S3 answers `InvalidRange` if the read begins at the end of the object. No bytes are left in this case.
      if ((error as { cause?: { name?: string } }).cause?.name !== 'InvalidRange') throw error
      read.body = Readable.from([])
      read.until = at
    }
  }

  async *#pieces(read: Reading): AsyncGenerator<Buffer> {
    for (let resumes = 0; ; ) {
      try {
        for await (const piece of read.body ?? []) {
          read.at += piece.length
          resumes = 0
          yield piece
        }
        const missing = (read.until ?? read.at) - read.at
        if (missing <= 0) return
        throw new Error(`the answer ended ${missing} bytes early`)
      } catch (error) {
        if (++resumes > RESUMES_MAX) throw unavailable(error)
        await sleep(RESUME_DELAY_MS * resumes)
        await this.#continue(read)
      }
    }
  }

  async *#olderThan(ageMs: number): AsyncGenerator<OldBlob[]> {
    const { bucket: Bucket, prefix: Prefix } = this.#location
    let ContinuationToken: string | undefined
    do {
      const page = await this.#send(
        new ListObjectsV2Command({ Bucket, Prefix, Delimiter: '/', ContinuationToken, MaxKeys: SWEEP_MAX }),
      )
      const old = (page.Contents ?? []).flatMap(({ Key = '', LastModified }) => {
        const age = Date.now() - (LastModified?.getTime() ?? Date.now())
        const key = Key.slice(Prefix.length)
        return age < ageMs || key === ID_NAME ? [] : [{ key, ageMs: age }]
      })
      if (old.length > 0) yield old
      ContinuationToken = page.NextContinuationToken
    } while (ContinuationToken)
  }

  /** Aborts multipart uploads that crashed processes left behind. Each sweep handles one page of the list of uploads. */
  async #abortUploads(ageMs: number): Promise<number> {
    const { bucket: Bucket, prefix: Prefix } = this.#location
    const { Uploads = [] } = await this.#send(new ListMultipartUploadsCommand({ Bucket, Prefix }))
    const old = Uploads.filter(({ Initiated }) => Initiated && Date.now() - Initiated.getTime() >= ageMs)
    for (const { Key, UploadId } of old) {
      await this.#send(new AbortMultipartUploadCommand({ Bucket, Key, UploadId })).catch(passMissing)
    }
    return old.length
  }

  get #encryption() {
    const { encryption, kmsKey } = this.#location
    return encryption ? { ServerSideEncryption: encryption, ...(kmsKey && { SSEKMSKeyId: kmsKey }) } : {}
  }

  #at(key: string): Address {
    return { Bucket: this.#location.bucket, Key: this.#location.prefix + requireKey(key) }
  }
}

function openClient({ endpoint, region }: S3Location, maxSockets: number): S3Client {
  return new S3Client({
    // Servers other than AWS need the bucket in the path of the URL. Many of them implement only the checksums that S3
    // requires.
    ...(endpoint && { endpoint, forcePathStyle: true, requestChecksumCalculation: 'WHEN_REQUIRED' }),
    ...((region ?? endpoint) && { region: region ?? 'us-east-1' }),
    // The retries of the AWS client end within 0.1 s, which is too short for a restart of the server. The function `retrying` retries instead.
    maxAttempts: 1,
    requestHandler: {
      connectionTimeout: CONNECT_TIMEOUT_MS,
      socketTimeout: SILENCE_MS_MAX,
      httpAgent: { maxSockets },
      httpsAgent: { maxSockets },
    },
  })
}

function retrying(client: S3Client): Send {
  return async (...args: unknown[]) => {
    for (let tries = 1; ; tries++) {
      try {
        return await (client.send as (...all: unknown[]) => Promise<unknown>).apply(client, args)
      } catch (error) {
        const failure = translated(error)
        if (tries === ATTEMPTS_MAX || !isTemporary(failure)) throw failure
        await sleep(backoffMs(tries, RETRY, Math.random()))
      }
    }
  }
}

interface Reading {
  readonly key: string
  readonly send: Send
  /** Offset at which the requested range ends, exclusive. Undefined for the end of the object. */
  readonly end: number | undefined
  /** Offset of the next byte to read. */
  at: number
  /** Offset at which the current response of S3 should end. If the response ends earlier, then the connection was lost. */
  until?: number
  version?: string | undefined
  body?: Readable
}

interface Address {
  readonly Bucket: string
  readonly Key: string
}

/** Joins the pieces of a stream to parts of {@link PART_BYTES}; the last part may be shorter. */
async function* partsOf(stream: AsyncIterable<Buffer>): AsyncGenerator<Buffer, undefined> {
  let pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of stream) {
    for (let at = 0; at < piece.length; ) {
      const taken = piece.subarray(at, at + PART_BYTES - bytes)
      pieces.push(taken)
      at += taken.length
      bytes += taken.length
      if (bytes < PART_BYTES) continue
      yield Buffer.concat(pieces)
      pieces = []
      bytes = 0
    }
  }
  if (bytes > 0) yield Buffer.concat(pieces)
}

interface S3Error extends Error {
  readonly $metadata?: { readonly httpStatusCode?: number }
  readonly code?: string
}

interface FailureClass {
  readonly names: RegExp
  readonly problem: string
  readonly remediation: string
  readonly isPermanent: boolean
}

const CLASSES: readonly FailureClass[] = [
  {
    names: /^NoSuchBucket$/,
    problem: 'The bucket of BLOB_URL does not exist',
    remediation: 'Create the bucket, or correct BLOB_URL, BLOB_S3_ENDPOINT and BLOB_S3_REGION.',
    isPermanent: true,
  },
  {
    names:
      /^(AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|CredentialsProviderError|ExpiredToken|InvalidToken)$/,
    problem: 'S3 denies access to the bucket of BLOB_URL',
    remediation:
      'Give the process credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role) with the permissions of docs/operate/operations.md.',
    isPermanent: true,
  },
  {
    names: /^(PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraintException)$|^Region is missing$/,
    problem: 'The bucket of BLOB_URL is in another region',
    remediation: 'Set BLOB_S3_REGION to the region of the bucket.',
    isPermanent: true,
  },
]
const UNREACHABLE: FailureClass = {
  names: /./,
  problem: 'The S3 server of BLOB_URL does not answer',
  remediation: 'Check BLOB_URL, BLOB_S3_ENDPOINT and the network.',
  isPermanent: false,
}

class S3UnavailableError extends Error {
  readonly remediation: string
  readonly isPermanent: boolean

  constructor({ problem, remediation, isPermanent }: FailureClass, cause: unknown) {
    super(`${problem}: ${(cause as Error).message}`, { cause })
    this.name = (cause as Error).name
    this.remediation = remediation
    this.isPermanent = isPermanent
  }
}

function isTemporary(failure: ServiceError): boolean {
  const { cause } = failure
  const status = cause instanceof S3UnavailableError ? (cause.cause as S3Error).$metadata?.httpStatusCode : undefined
  const isRefused = status !== undefined && status >= 400 && status < 500 && status !== 429 && status !== 408
  return cause instanceof S3UnavailableError && !cause.isPermanent && !isRefused
}

function translated(error: unknown): ServiceError {
  if (error instanceof ServiceError) return error
  const { name, $metadata } = error as S3Error
  const isMissing = name === 'NoSuchKey' || (name === 'NotFound' && $metadata?.httpStatusCode === 404)
  if (isMissing)
    return new ServiceError('not_found', 'The stored body of the request no longer exists.', { cause: error })
  return unavailable(error)
}

function unavailable(error: unknown): ServiceError {
  if (error instanceof ServiceError) return error
  const { name, message } = error as S3Error
  const found = CLASSES.find(({ names }) => names.test(name) || names.test(message)) ?? UNREACHABLE
  const cause = new S3UnavailableError(found, error)
  const more = { cause, retryAfterMs: RETRY_AFTER_MS, isUndone: true, isInfrastructure: true, reason: 'blobs' } as const
  return new ServiceError('overloaded', 'The store of large bodies and files does not answer.', more)
}

function passMissing(error: unknown): undefined {
  const { code, cause } = error as ServiceError & { cause?: S3Error }
  if (code !== 'not_found' && cause?.name !== 'NoSuchUpload') throw error
  return undefined
}

/** Ignores the error of a write with `IfNoneMatch: *` if the object already exists, because another process has then written the object. */
function passExisting(error: unknown): void {
  const { cause } = error as { cause?: { name?: string } }
  if (cause?.name !== 'PreconditionFailed' && cause?.name !== 'ConditionalRequestConflict') throw error
}
