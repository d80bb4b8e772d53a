import { Buffer } from 'node:buffer'
import mammoth from 'mammoth'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { bodyOf, walkHtml } from './html.ts'

export async function readDocx(bytes: Uint8Array, builder: TextBuilder): Promise<ReadDocument> {
  const { value } = await mammoth.convertToHtml({ buffer: Buffer.from(bytes) }, { externalFileAccess: false })
  walkHtml(bodyOf(value), builder)
  return builder.build()
}
