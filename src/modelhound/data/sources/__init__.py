"""One file per kind of data set; each has a class that follows `source.DataSource`, and `dataset.SOURCES` lists them.

    embedded        the sets that come with the package
    folder          one folder of images per class          food101, cifar      as these two are unpacked
    tar_shards      the WebDataset layout (tar_index)       prepared            what `hound prepare` made
    csv_table, jsonl_table, parquet_table, hub_datasets     tables, behind `tables` (columns, labels, table_files)

texts and image_bytes read items that are in memory already.
"""
