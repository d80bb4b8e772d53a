import { ListBatches, ListMessageBatches } from '#schemas/batches/body.ts'
import { ListFiles } from '#schemas/files.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Batches'
const guide = 'batches'

export const BATCHES: Operations = {
  'POST /v1/files': {
    ...{ id: 'uploadFile', tag, guide, summary: 'Upload a file' },
    form: 'multipart/form-data',
    body: 'FileForm',
    answers: ok('The file.', 'File'),
  },
  'GET /v1/files': {
    ...{ id: 'listFiles', tag, guide, summary: 'List files' },
    description: 'Files of the project. Newest first by default.',
    query: ListFiles,
    answers: ok('A page of files.', 'FileList'),
  },
  'GET /v1/files/:id': {
    ...{ id: 'getFile', tag, guide, summary: 'Retrieve a file' },
    answers: ok('The file.', 'File'),
  },
  'DELETE /v1/files/:id': {
    ...{ id: 'deleteFile', tag, guide, summary: 'Delete a file' },
    answers: ok('The file is deleted.', 'FileDeleted'),
  },
  'GET /v1/files/:id/content': {
    ...{ id: 'getFileContent', tag, guide, summary: 'Retrieve the content of a file' },
    answers: { 200: { description: 'The content, unchanged.', media: ['application/octet-stream'] } },
  },
  'POST /v1/batches': {
    ...{ id: 'createBatch', tag, guide, summary: 'Create a batch' },
    description: 'Runs up to 50,000 requests of an uploaded JSONL file.',
    headers: ['idempotency-key'],
    body: 'CreateBatchRequest',
    answers: ok('The batch.', 'Batch'),
  },
  'GET /v1/batches': {
    ...{ id: 'listBatches', tag, guide, summary: 'List batches' },
    description: 'Batches of the project, newest first.',
    query: ListBatches,
    answers: ok('A page of batches.', 'BatchList'),
  },
  'GET /v1/batches/:id': {
    ...{ id: 'getBatch', tag, guide, summary: 'Retrieve a batch' },
    answers: ok('The batch.', 'Batch'),
  },
  'POST /v1/batches/:id/cancel': {
    ...{ id: 'cancelBatch', tag, guide, summary: 'Cancel a batch' },
    description: 'The output file contains the results of the requests that finished before the cancellation.',
    answers: ok('The batch, whose status may still be `cancelling`.', 'Batch'),
    failures: [409],
  },
  'POST /v1/messages/batches': {
    ...{ id: 'createMessageBatch', tag, guide, summary: 'Create a message batch (Anthropic format)' },
    headers: ['anthropic-version', 'idempotency-key'],
    body: 'CreateMessageBatchRequest',
    answers: ok('The message batch.', 'MessageBatch'),
  },
  'GET /v1/messages/batches': {
    ...{ id: 'listMessageBatches', tag, guide, summary: 'List message batches' },
    description: 'Message batches of the project, newest first.',
    query: ListMessageBatches,
    answers: ok('A page of message batches.', 'MessageBatchList'),
  },
  'GET /v1/messages/batches/:id': {
    ...{ id: 'getMessageBatch', tag, guide, summary: 'Retrieve a message batch' },
    answers: ok('The message batch.', 'MessageBatch'),
  },
  'DELETE /v1/messages/batches/:id': {
    ...{ id: 'deleteMessageBatch', tag, guide, summary: 'Delete a message batch' },
    description: 'The batch must have ended.',
    answers: ok('The message batch is deleted.', 'MessageBatchDeleted'),
    failures: [409],
  },
  'POST /v1/messages/batches/:id/cancel': {
    ...{ id: 'cancelMessageBatch', tag, guide, summary: 'Cancel a message batch' },
    answers: ok('The message batch, whose status may still be `canceling`.', 'MessageBatch'),
    failures: [409],
  },
  'GET /v1/messages/batches/:id/results': {
    ...{ id: 'getMessageBatchResults', tag, guide, summary: 'Retrieve the results of a message batch' },
    answers: {
      200: { description: 'JSONL: one result per request, in request order.', media: ['application/x-jsonl'] },
    },
    failures: [409],
  },
}
